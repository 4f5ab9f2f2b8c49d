//! The products of a linear layer as cuBLAS has them, whose matrices lie column by column.

/// `first * second`. In memory a matrix of rows is, column by column, its own transpose: so the product of rows `x * y` is that of
/// columns `y * x`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) struct Product {
    /// Rows of the result, and of the first factor.
    pub rows: usize,
    /// Columns of the result, and of the second factor.
    pub columns: usize,
    /// What is summed over.
    pub inner: usize,
    /// Whether the transposes of the two factors are what lies in memory.
    pub is_transposed: [bool; 2],
}

impl Product {
    /// `output = input * weight`, of `weight` and `input`.
    pub fn forward([rows, channels, outputs]: [usize; 3]) -> Self {
        Self { rows: outputs, columns: rows, inner: channels, is_transposed: [false, false] }
    }

    /// `d_input = d_output * weight^T`, of `weight` and `d_output`.
    pub fn of_input([rows, channels, outputs]: [usize; 3]) -> Self {
        Self { rows: channels, columns: rows, inner: outputs, is_transposed: [true, false] }
    }

    /// `d_weight = input^T * d_output`, of `d_output` and `input`.
    pub fn of_weight([rows, channels, outputs]: [usize; 3]) -> Self {
        Self { rows: outputs, columns: channels, inner: rows, is_transposed: [false, true] }
    }

    /// Rows and columns of the factors and of the result as they lie in memory. The columns follow one another without gaps.
    pub fn stored(&self) -> [[usize; 2]; 3] {
        let turned = |[a, b]: [usize; 2], is_turned: bool| if is_turned { [b, a] } else { [a, b] };
        [
            turned([self.rows, self.inner], self.is_transposed[0]),
            turned([self.inner, self.columns], self.is_transposed[1]),
            [self.rows, self.columns],
        ]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What cuBLAS computes, by its definition.
    fn multiplied(product: &Product, first: &[f64], second: &[f64]) -> Vec<f64> {
        let [[rows, _], [inner, _], _] = product.stored();
        let at =
            |memory: &[f64], leading: usize, is_transposed: bool, row: usize, column: usize| {
                let (row, column) = if is_transposed { (column, row) } else { (row, column) };
                memory[column * leading + row]
            };
        let [turn_first, turn_second] = product.is_transposed;
        let mut result = vec![f64::NAN; product.rows * product.columns];
        for column in 0..product.columns {
            for row in 0..product.rows {
                let terms = (0..product.inner).map(|i| {
                    at(first, rows, turn_first, row, i) * at(second, inner, turn_second, i, column)
                });
                result[column * product.rows + row] = terms.sum();
            }
        }
        result
    }

    /// `a * b` of rows, after their axes are exchanged where that is said.
    fn rows_times_rows(
        (a, [a_rows, a_columns], turn_a): (&[f64], [usize; 2], bool),
        (b, [b_rows, b_columns], turn_b): (&[f64], [usize; 2], bool),
    ) -> Vec<f64> {
        let element = |memory: &[f64], columns: usize, is_turned: bool, i: usize, j: usize| {
            if is_turned { memory[j * columns + i] } else { memory[i * columns + j] }
        };
        let (rows, inner) = if turn_a { (a_columns, a_rows) } else { (a_rows, a_columns) };
        let columns = if turn_b { b_rows } else { b_columns };
        let mut result = vec![];
        for i in 0..rows {
            for j in 0..columns {
                let terms = (0..inner).map(|k| {
                    element(a, a_columns, turn_a, i, k) * element(b, b_columns, turn_b, k, j)
                });
                result.push(terms.sum());
            }
        }
        result
    }

    #[test]
    fn products_of_columns_are_those_of_rows() {
        let shape @ [rows, channels, outputs] = [5, 3, 4];
        let numbers = |count: usize, step: usize| -> Vec<f64> {
            (0..count).map(|i| (i * step % 11) as f64 - 5.0).collect()
        };
        let input = numbers(rows * channels, 3);
        let weight = numbers(channels * outputs, 7);
        let gradient = numbers(rows * outputs, 5);
        let x = |turned| (&input[..], [rows, channels], turned);
        let w = |turned| (&weight[..], [channels, outputs], turned);
        let dy = |turned| (&gradient[..], [rows, outputs], turned);

        let forward = multiplied(&Product::forward(shape), &weight, &input);
        assert_eq!(forward, rows_times_rows(x(false), w(false)));
        let of_input = multiplied(&Product::of_input(shape), &weight, &gradient);
        assert_eq!(of_input, rows_times_rows(dy(false), w(true)));
        let of_weight = multiplied(&Product::of_weight(shape), &gradient, &input);
        assert_eq!(of_weight, rows_times_rows(x(true), dy(false)));
    }
}
