/// How a cube shares out rows: a row has `lanes` units, of which each holds every `lanes`-th vector.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct RowTile {
    /// Vectors of a row.
    pub lines: usize,
    /// Units of a row, a power of two.
    pub lanes: usize,
    /// Rows that a cube takes at once.
    pub slots: usize,
}

/// Units of a row, where they do not hold too much then, and units of a cube.
const LANES: usize = 32;
const UNITS: usize = 256;
/// Most elements of a row that a unit holds: the backward pass has four such arrays in registers.
const MAX_HELD: usize = 32;
/// Most vectors of a row on a CPU, where one unit holds them all: code is written out for each.
const MAX_LINES: usize = 256;

impl RowTile {
    /// For rows of so many vectors of so many elements, in cubes of at most so many units; one unit has a row to itself. `None`
    /// where rows are too long.
    pub fn new(lines: usize, vector: usize, units: usize) -> Option<Self> {
        if units <= 1 {
            return (lines <= MAX_LINES).then_some(Self { lines, lanes: 1, slots: 1 });
        }
        let most = 1 << units.clamp(1, UNITS).ilog2();
        let mut lanes = lines.next_power_of_two().min(LANES).min(most);
        while lines.div_ceil(lanes) * vector > MAX_HELD && lanes < most {
            lanes *= 2;
        }
        let fits = lines.div_ceil(lanes) * vector <= MAX_HELD;
        fits.then_some(Self { lines, lanes, slots: most / lanes })
    }

    /// For sums of columns, of which a unit has one vector: rows are as many lanes long.
    pub fn of_columns(lines: usize, units: usize) -> Self {
        let units = 1 << units.clamp(1, UNITS).ilog2();
        let lanes = lines.max(1).next_power_of_two().min(LANES).min(units);
        Self { lines: lanes, lanes, slots: units / lanes }
    }

    /// Units of a cube.
    pub fn units(&self) -> usize {
        self.lanes * self.slots
    }

    /// Vectors that a unit holds.
    pub fn held(&self) -> usize {
        self.lines.div_ceil(self.lanes)
    }

    /// Whether the last vectors of some units are none.
    pub fn is_ragged(&self) -> bool {
        !self.lines.is_multiple_of(self.lanes)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_vector_has_a_unit_and_cubes_are_full() {
        for (lines, units, vector) in sizes(300) {
            let Some(tile) = RowTile::new(lines, vector, units) else {
                assert!(
                    lines * vector > MAX_HELD * units.min(UNITS) / 2,
                    "{lines} {vector} {units}"
                );
                continue;
            };
            assert!(tile.lanes * tile.held() >= lines, "{tile:?}");
            assert!(tile.lanes * (tile.held() - 1) < lines, "{tile:?}");
            assert_eq!(tile.is_ragged(), tile.lanes * tile.held() != lines, "{tile:?}");
            assert!(tile.slots >= 1 && tile.units() <= units, "{tile:?}");
            assert!(tile.held() * vector <= MAX_HELD, "{tile:?}");
        }
        let bf16 = |channels: usize| RowTile::new(channels / 8, 8, 1024);
        assert_eq!(bf16(64), Some(RowTile { lines: 8, lanes: 8, slots: 32 }));
        assert_eq!(bf16(1536), Some(RowTile { lines: 192, lanes: 64, slots: 4 }));
        assert_eq!(bf16(16384), None);
        assert_eq!(RowTile::new(64, 8, 1).map(|tile| tile.held()), Some(64));
    }

    fn sizes(most: usize) -> impl Iterator<Item = (usize, usize, usize)> {
        (1..most).flat_map(|lines| {
            [2, 64, 256, 1024]
                .into_iter()
                .flat_map(move |units| [1, 4, 8].map(|vector| (lines, units, vector)))
        })
    }
}
