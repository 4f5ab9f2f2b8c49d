//! How good a model is on pictures that it was not trained on.

use burn::tensor::Tensor;

use super::Failure;

/// A wider matrix does not fit on a screen.
const LARGEST_MATRIX: usize = 20;
/// Names of classes are cut to this many characters.
const LONGEST_NAME: usize = 12;

/// The class of the largest logit of each picture, of `[batch, classes]`.
pub fn largest(logits: Tensor<2>) -> Result<Vec<usize>, Failure> {
    let seen = logits.argmax(1).into_data().convert::<i64>();
    let seen: Vec<i64> = seen
        .try_to_vec()
        .map_err(|error| Failure::Run(format!("the classes cannot be read: {error:?}")))?;
    Ok(seen.into_iter().map(|class| class as usize).collect())
}

/// How often each class was seen as each other.
pub struct Confusion {
    classes: Vec<String>,
    /// `counts[class][seen as]`.
    counts: Vec<Vec<usize>>,
}

impl Confusion {
    /// Counts pairs of the class that a picture has and the one it is seen as.
    pub fn new(classes: &[String], pairs: impl IntoIterator<Item = (usize, usize)>) -> Self {
        let classes: Vec<String> =
            classes.iter().map(|name| name.chars().take(LONGEST_NAME).collect()).collect();
        let mut counts = vec![vec![0; classes.len()]; classes.len()];
        for (class, seen) in pairs {
            counts[class][seen] += 1;
        }
        Self { classes, counts }
    }

    /// `(right, all)`.
    pub fn right(&self) -> (usize, usize) {
        let right = self.counts.iter().enumerate().map(|(class, row)| row[class]).sum();
        (right, self.counts.iter().flatten().sum())
    }

    /// A table with a row for each class: how often it was seen as which, and how often rightly.
    pub fn table(&self) -> String {
        let is_matrix = self.classes.len() <= LARGEST_MATRIX;
        let widest = self.classes.iter().map(|name| name.chars().count()).max().unwrap_or(0);
        let (first, width) = (widest.max("true".len()), widest.max(4) + 1);
        let mut table = format!("{:first$}", "true");
        if is_matrix {
            self.classes.iter().for_each(|name| table += &format!("{name:>width$}"));
        }
        table += "   right\n";
        for (class, (name, row)) in self.classes.iter().zip(&self.counts).enumerate() {
            table += &format!("{name:first$}");
            if is_matrix {
                for count in row {
                    let cell = if *count == 0 { "·".to_string() } else { count.to_string() };
                    table += &format!("{cell:>width$}");
                }
            }
            table += &format!("  {:>6}\n", percent(row[class], row.iter().sum()));
        }
        table
    }
}

/// `97.2 %`, or a dash where there is nothing to count.
pub fn percent(part: usize, whole: usize) -> String {
    if whole == 0 {
        return "-".to_string();
    }
    format!("{:.1} %", 100.0 * part as f64 / whole as f64)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_matrix_counts_what_was_seen() {
        let classes = ["cat", "dog", "owl"].map(String::from);
        let confusion = Confusion::new(&classes, [(0, 0), (0, 2), (0, 0), (1, 1)]);
        assert_eq!(confusion.right(), (3, 4));
        let expected = "true  cat  dog  owl   right\n\
                        cat     2    ·    1  66.7 %\n\
                        dog     ·    1    ·  100.0 %\n\
                        owl     ·    ·    ·       -\n";
        assert_eq!(confusion.table(), expected);
    }
}
