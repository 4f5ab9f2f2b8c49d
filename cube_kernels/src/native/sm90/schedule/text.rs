//! What is said of a schedule: to people, and as macros to its kernel.

use std::fmt;

use super::{Gradients, Listed, Mask, Pass, Schedule};
use crate::MAX_RANK;
use crate::native::Element;
use crate::native::macros::{axes_bits, sides};
use crate::problem::{NAMES, axes_suffix, flags_suffix, tile_name};

impl Schedule {
    /// The shape of a CTA and its pipeline in a few words.
    pub fn summary(&self) -> String {
        let mask = match self.mask {
            Mask::None => "no mask",
            Mask::Linear => "masks by position",
            Mask::OneHot => "one-hot masks",
            Mask::ByItem => "listed blocks",
        };
        let Self { warpgroups, stages, .. } = self;
        let (ctas, joined) = match self.teams {
            1 => (self.ctas, ""),
            teams => (teams, " in one CTA"),
        };
        let axis = ["slowest axis", "middle axis", "fastest axis"][self.stack];
        let (columns, of) =
            (self.columns(), if self.pass == Pass::Keys { "queries" } else { "keys" });
        let shared = if self.shares_rows { ", which share rows" } else { "" };
        let splits = match self.splits {
            1 => String::new(),
            splits => format!(", heads of a group in {splits} splits"),
        };
        let slopes = match (self.keeps_slopes, self.pass) {
            (false, _) => "",
            (true, Pass::Keys) => ", leaves slopes in memory",
            (true, _) => ", sums slopes from memory",
        };
        format!(
            "{ctas} x {warpgroups} warpgroups{joined}{shared} along the {axis}, {stages} x {columns} {of}, {mask}{splits}{slopes}"
        )
    }

    /// The tensors that it writes.
    pub fn writes(&self) -> String {
        let Gradients { start, width, value, bias } = self.gradients;
        let slice = match width < self.head_dim {
            true => format!("[{start}..{}]", start + width),
            false => String::new(),
        };
        match self.pass {
            Pass::Forward => "out, lse".to_string(),
            Pass::Queries if bias => format!("dq{slice}, dbias"),
            Pass::Queries => format!("dq{slice}"),
            Pass::Keys if width == 0 => "dv".to_string(),
            Pass::Keys if value => format!("dk{slice}, dv"),
            Pass::Keys => format!("dk{slice}"),
        }
    }

    /// The macros that the source is specialised by.
    pub fn macros(&self) -> Vec<(&'static str, usize)> {
        let (producer, consumer) = self.registers();
        let mut macros = vec![
            ("BF16", usize::from(self.element == Element::Bf16)),
            ("DIM", self.head_dim),
            ("DIM_V", self.head_dim_v),
            ("RANK", self.rank),
            ("CAUSAL", axes_bits(self.is_causal)),
            ("STRIDED", usize::from(self.is_strided)),
            ("DILATED", usize::from(self.is_dilated)),
            ("ORIGIN", usize::from(self.has_origin)),
            ("ADDITIONAL", usize::from(self.has_additional)),
            ("BIAS", usize::from(self.bias.is_some())),
        ];
        macros.extend(sides(self.bias, self.row_tile(), self.column_tile()));
        macros.extend([
            ("STACK", self.stack),
            ("WARPGROUPS", self.warpgroups),
            ("TEAMS", self.teams),
            ("BLOCKS", self.blocks),
            ("STAGES", self.stages),
            ("CTAS", self.ctas),
            ("SWIZZLE", self.swizzle()),
            ("MASK", self.mask as usize),
            ("INVERSE", usize::from(self.pass == Pass::Keys)),
            ("PACKED", usize::from(self.is_packed)),
            ("BIAS_COPIES", self.bias_copies()),
            ("PRODUCER_REGISTERS", producer),
            ("CONSUMER_REGISTERS", consumer),
        ]);
        if let Some(Listed { row_heads, column_heads }) = self.listed {
            macros.extend([("LISTED", 1), ("ROW_H", row_heads), ("COLUMN_H", column_heads)]);
        }
        if self.one_block.contains(&true) {
            macros.push(("ONE_BLOCK", axes_bits(self.one_block)));
        }
        if self.splits > 1 {
            macros.push(("SPLITS", self.splits));
        }
        if self.shares_rows {
            macros.push(("SHARED_ROWS", 1));
        }
        if self.keeps_slopes {
            macros.push(("SLOPES", 1));
        }
        if !self.sums_slopes() {
            macros.extend([
                ("ROW_BUFFERS", self.row_buffers()),
                ("ROWS_IN_REGISTERS", usize::from(self.rows_in_registers())),
            ]);
        }
        match self.pass {
            Pass::Forward => macros.push(("PINGPONG", usize::from(self.warpgroups > 1))),
            Pass::Queries | Pass::Keys => macros.extend([
                ("SUM_BIAS", usize::from(self.gradients.bias)),
                ("FIRST_START", self.gradients.start),
                ("FIRST_DIM", self.gradients.width),
                ("WITH_FIRST", usize::from(self.gradients.width > 0)),
                ("WITH_SECOND", usize::from(self.gradients.value)),
            ]),
        }
        if self.pass != Pass::Forward && !self.sums_slopes() {
            macros.extend([
                ("SUM_SLOTS", self.sum_slots),
                ("LATE", usize::from(self.is_late)),
                ("EARLY", usize::from(self.finds_early())),
                ("MAKES_STATISTICS", usize::from(self.makes_statistics)),
            ]);
        }
        macros
    }
}

impl fmt::Display for Schedule {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let first = MAX_RANK - self.rank;
        write!(f, "sm90_{}_{}_d{}", self.pass.name(), self.element.name(), self.head_dim)?;
        if self.head_dim_v != self.head_dim {
            write!(f, "v{}", self.head_dim_v)?;
        }
        let Gradients { start, width, value, bias } = self.gradients;
        match self.pass {
            Pass::Forward => {}
            _ if width == 0 => f.write_str("_value")?,
            _ if width < self.head_dim => write!(f, "_from{start}")?,
            Pass::Keys if !value => f.write_str("_key")?,
            _ => {}
        }
        write!(f, "_q{}_k{}", tile_name(&self.q_tile[first..]), tile_name(&self.kv_tile[first..]))?;
        write!(f, "_{}w{}b{}s{}c", self.warpgroups, self.blocks, self.stages, self.ctas)?;
        if self.teams > 1 {
            write!(f, "{}t", self.teams)?;
        }
        write!(f, "_{}", NAMES[self.stack])?;
        f.write_str(if self.is_late { "_late" } else { "" })?;
        if self.splits > 1 {
            write!(f, "_{}splits", self.splits)?;
        }
        f.write_str(if self.shares_rows { "_shared" } else { "" })?;
        f.write_str(match self.mask {
            Mask::None => "_whole",
            Mask::Linear => "_linear",
            Mask::OneHot => "_onehot",
            Mask::ByItem => "_listed",
        })?;
        if let Some(Listed { row_heads, column_heads }) = self.listed {
            for (name, heads) in [("_rh", row_heads), ("_ch", column_heads)] {
                if heads > 1 {
                    write!(f, "{name}{heads}")?;
                }
            }
        }
        f.write_str(&axes_suffix("one", self.one_block))?;
        f.write_str(&axes_suffix("causal", self.is_causal))?;
        f.write_str(&flags_suffix([
            (self.is_strided, "_strided"),
            (self.is_dilated, "_dilated"),
            (self.has_origin, "_origin"),
            (self.has_additional, "_additional"),
            (self.is_packed, "_packed"),
            (self.makes_statistics, "_statistics"),
            (self.keeps_slopes, "_slopes"),
        ]))?;
        if let Some(extents) = self.bias {
            write!(f, "_bias{}", tile_name(&extents[first..]))?;
        }
        if bias { write!(f, "_dbias{}", self.sum_slots) } else { Ok(()) }
    }
}
