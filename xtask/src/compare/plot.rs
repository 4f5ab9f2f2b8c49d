//! Grouped horizontal bars: a group for each problem, a bar for each implementation, the passes
//! side by side. Drawn on pixels, since every group has as many bars as it has results.

use plotters::prelude::*;
use plotters::style::text_anchor::{HPos, Pos, VPos};

use super::join::{Cell, Comparison, Row};
use super::record::Pass;
use super::style::{self, digits};

#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Quantity {
    /// Milliseconds, on a logarithmic scale.
    Time,
    /// TFLOP/s of the operations that the windows need.
    Rate,
}

impl Quantity {
    pub fn name(self) -> &'static str {
        match self {
            Self::Time => "time",
            Self::Rate => "tflops",
        }
    }
}

// Sizes in pixels.
const LABELS: i32 = 170;
const PANEL: i32 = 520;
const MARGIN: i32 = 24;
const TITLE: i32 = 64;
const LEGEND: i32 = 24;
const HEADING: i32 = 30;
const BAR: i32 = 12;
const GAP: i32 = 12;
const AXIS: i32 = 48;

const INK: RGBColor = RGBColor(40, 40, 40);
const FAINT: RGBColor = RGBColor(222, 222, 222);

type Area<'a> = DrawingArea<SVGBackend<'a>, plotters::coord::Shift>;
type Drawn = Result<(), DrawingAreaErrorKind<std::io::Error>>;

/// A bar: whose it is, and how long.
#[derive(Clone, Debug, PartialEq)]
struct Bar {
    implementation: String,
    is_published: bool,
    value: f64,
}

/// The bars of a problem, in both passes.
struct Group {
    problem: String,
    bars: Vec<(Pass, Vec<Bar>)>,
    top: i32,
    height: i32,
}

/// The plot as SVG text.
pub fn svg(comparison: &Comparison, quantity: Quantity) -> Result<String, String> {
    let plot = Plot::new(comparison, quantity);
    let mut text = String::new();
    let size = (plot.width as u32, (plot.top + plot.body + AXIS) as u32);
    let area = SVGBackend::with_string(&mut text, size).into_drawing_area();
    plot.draw(&area).map_err(|error| error.to_string())?;
    drop(area);
    Ok(text)
}

/// What is drawn, and where.
struct Plot<'a> {
    comparison: &'a Comparison,
    quantity: Quantity,
    groups: Vec<Group>,
    passes: Vec<Pass>,
    legend: Vec<(String, bool)>,
    width: i32,
    /// Where the groups begin.
    top: i32,
    /// Height of all groups.
    body: i32,
}

impl<'a> Plot<'a> {
    fn new(comparison: &'a Comparison, quantity: Quantity) -> Self {
        let groups = groups(comparison, quantity);
        let passes: Vec<Pass> = [Pass::Forward, Pass::Backward]
            .into_iter()
            .filter(|pass| comparison.rows.iter().any(|row| row.pass == *pass))
            .collect();
        let legend = legend(&groups);
        let body = groups.last().map_or(0, |group| group.top + group.height + GAP);
        let width = LABELS + (PANEL + MARGIN) * passes.len().max(1) as i32 + MARGIN;
        let top = TITLE + LEGEND * legend_rows(&legend, width) + HEADING;
        Self { comparison, quantity, groups, passes, legend, width, top, body }
    }

    fn draw(&self, area: &Area<'_>) -> Drawn {
        area.fill(&WHITE)?;
        let Comparison { device, driver, dates, dtype, mode, .. } = self.comparison;
        let what = match self.quantity {
            Quantity::Time => "Time of a call",
            Quantity::Rate => "TFLOP/s of the operations that the windows need",
        };
        write(area, &format!("{what}, {dtype}, {mode}"), (MARGIN, 24), 20, HPos::Left)?;
        write(area, &format!("{device}, {driver}, {dates}"), (MARGIN, 48), 14, HPos::Left)?;
        draw_legend(area, &self.legend, self.width)?;
        for group in &self.groups {
            let middle = self.top + group.top + group.height / 2;
            write(area, &group.problem, (LABELS - 10, middle), 14, HPos::Right)?;
        }
        let scale = Scale::new(&self.groups, self.quantity);
        for (number, pass) in self.passes.iter().enumerate() {
            let left = LABELS + (PANEL + MARGIN) * number as i32;
            self.draw_panel(area, *pass, left, &scale)?;
        }
        area.present()
    }

    fn draw_panel(&self, area: &Area<'_>, pass: Pass, left: i32, scale: &Scale) -> Drawn {
        let (top, bottom) = (self.top, self.top + self.body);
        write(area, pass.name(), (left + PANEL / 2, top - 14), 16, HPos::Center)?;
        for (place, label) in scale.ticks() {
            let x = left + place;
            area.draw(&PathElement::new([(x, top), (x, bottom)], FAINT))?;
            write(area, &label, (x, bottom + 14), 12, HPos::Center)?;
        }
        area.draw(&PathElement::new([(left, top), (left, bottom)], INK))?;
        let unit = match self.quantity {
            Quantity::Time => "ms, logarithmic",
            Quantity::Rate => "TFLOP/s",
        };
        write(area, unit, (left + PANEL / 2, bottom + 34), 12, HPos::Center)?;
        for group in &self.groups {
            let bars = group.bars.iter().filter(|(of, _)| *of == pass).flat_map(|(_, bars)| bars);
            for (place, bar) in bars.enumerate() {
                let y = top + group.top + BAR * place as i32;
                draw_bar(area, bar, left, y, scale.place(bar.value))?;
            }
        }
        Ok(())
    }
}

fn draw_bar(area: &Area<'_>, bar: &Bar, left: i32, top: i32, length: i32) -> Drawn {
    let corners = [(left, top + 1), (left + length.max(1), top + BAR - 1)];
    swatch(area, corners, &bar.implementation, bar.is_published)?;
    let place = (left + length.max(1) + 4, top + BAR / 2);
    write(area, &digits(bar.value), place, 10, HPos::Left)
}

/// A filled box; published figures, which were not measured in this run, are pale with a border.
fn swatch(area: &Area<'_>, corners: [(i32, i32); 2], name: &str, is_published: bool) -> Drawn {
    let [red, green, blue] = style::colour(name);
    let colour = RGBColor(red, green, blue);
    if is_published {
        let pale = |part: u8| 255 - (255 - part) / 4;
        let pale = RGBColor(pale(red), pale(green), pale(blue));
        area.draw(&Rectangle::new(corners, pale.filled()))?;
        return area.draw(&Rectangle::new(corners, colour.stroke_width(1)));
    }
    area.draw(&Rectangle::new(corners, colour.filled()))
}

fn write(area: &Area<'_>, text: &str, place: (i32, i32), size: i32, side: HPos) -> Drawn {
    let style = TextStyle::from(("sans-serif", size).into_font())
        .color(&INK)
        .pos(Pos::new(side, VPos::Center));
    area.draw(&Text::new(text.to_string(), place, style))
}

/// The bars that have a value; published ones where they are of this device and element type.
fn groups(comparison: &Comparison, quantity: Quantity) -> Vec<Group> {
    let mut groups: Vec<Group> = vec![];
    for row in &comparison.rows {
        let bars = bars(comparison, row, quantity);
        if bars.is_empty() {
            continue;
        }
        match groups.last_mut() {
            Some(group) if group.problem == row.problem => group.bars.push((row.pass, bars)),
            _ => {
                let (problem, bars) = (row.problem.clone(), vec![(row.pass, bars)]);
                groups.push(Group { problem, bars, top: 0, height: 0 });
            }
        }
    }
    let mut top = GAP;
    for group in &mut groups {
        let bars = group.bars.iter().map(|(_, bars)| bars.len()).max().unwrap_or(0);
        (group.top, group.height) = (top, BAR * bars as i32);
        top += group.height + GAP;
    }
    groups
}

fn bars(comparison: &Comparison, row: &Row, quantity: Quantity) -> Vec<Bar> {
    let pick = |ms: f64, tflops: f64| match quantity {
        Quantity::Time => ms,
        Quantity::Rate => tflops,
    };
    let mut bars = vec![];
    for name in &comparison.implementations {
        if let Some(Cell::Time { ms, tflops }) = row.cells.get(name) {
            let (implementation, value) = (name.clone(), pick(*ms, *tflops));
            bars.push(Bar { implementation, is_published: false, value });
        }
    }
    if comparison.is_published_for() {
        bars.extend(row.published.iter().map(|time| Bar {
            implementation: time.implementation.to_string(),
            is_published: true,
            value: pick(time.ms, time.tflops),
        }));
    }
    bars
}

/// Who has a bar, measured ones first.
fn legend(groups: &[Group]) -> Vec<(String, bool)> {
    let bars = groups.iter().flat_map(|group| group.bars.iter().flat_map(|(_, bars)| bars));
    let mut names: Vec<_> =
        bars.map(|bar| (bar.implementation.clone(), bar.is_published)).collect();
    names.sort_by_key(|(name, is_published)| (*is_published, style::rank(name), name.clone()));
    names.dedup();
    names
}

fn legend_text((name, is_published): &(String, bool)) -> String {
    let heading = style::heading(name);
    if *is_published { format!("{heading}, published") } else { heading }
}

/// Where each entry of the legend stands: row and distance from the left.
fn legend_places(legend: &[(String, bool)], width: i32) -> Vec<(i32, i32)> {
    let (mut row, mut x) = (0, MARGIN);
    legend
        .iter()
        .map(|entry| {
            // There is no font to measure with: this is wide enough for a usual one.
            let needed = 44 + 8 * legend_text(entry).len() as i32;
            if x + needed > width && x > MARGIN {
                (row, x) = (row + 1, MARGIN);
            }
            let place = (row, x);
            x += needed;
            place
        })
        .collect()
}

fn legend_rows(legend: &[(String, bool)], width: i32) -> i32 {
    legend_places(legend, width).last().map_or(1, |(row, _)| row + 1)
}

fn draw_legend(area: &Area<'_>, legend: &[(String, bool)], width: i32) -> Drawn {
    for (entry, (row, x)) in legend.iter().zip(legend_places(legend, width)) {
        let y = TITLE + LEGEND * row + LEGEND / 2;
        swatch(area, [(x, y - 6), (x + 16, y + 6)], &entry.0, entry.1)?;
        write(area, &legend_text(entry), (x + 22, y), 14, HPos::Left)?;
    }
    Ok(())
}

/// From values to pixels right of a panel's left edge.
struct Scale {
    quantity: Quantity,
    low: f64,
    high: f64,
}

impl Scale {
    fn new(groups: &[Group], quantity: Quantity) -> Self {
        let bars = groups.iter().flat_map(|group| group.bars.iter().flat_map(|(_, bars)| bars));
        let (mut low, mut high) = (f64::INFINITY, 0.0_f64);
        for bar in bars {
            (low, high) = (low.min(bar.value), high.max(bar.value));
        }
        match quantity {
            // The shortest bar is still to be seen, and there is room for the longest one's figure.
            Quantity::Time if high > 0.0 => {
                Self { quantity, low: (low / 1.5).log10().floor(), high: (high * 3.0).log10() }
            }
            Quantity::Time => Self { quantity, low: -1.0, high: 1.0 },
            Quantity::Rate => Self { quantity, low: 0.0, high: high.max(1e-6) * 1.12 },
        }
    }

    fn place(&self, value: f64) -> i32 {
        let value = match self.quantity {
            Quantity::Time => value.log10(),
            Quantity::Rate => value,
        };
        ((value - self.low) / (self.high - self.low) * f64::from(PANEL)).round() as i32
    }

    /// Places and labels: decades, or some round numbers.
    fn ticks(&self) -> Vec<(i32, String)> {
        let values: Vec<f64> = match self.quantity {
            Quantity::Time => (self.low as i32..=self.high.floor() as i32)
                .map(|power| 10f64.powi(power))
                .collect(),
            Quantity::Rate => {
                let rough = self.high / 8.0;
                let power = 10f64.powf(rough.log10().floor());
                let factor = [1.0, 2.0, 5.0, 10.0].into_iter().find(|f| f * power >= rough);
                let step = factor.unwrap_or(10.0) * power;
                (0..=(self.high / step) as i32).map(|number| f64::from(number) * step).collect()
            }
        };
        values.into_iter().map(|value| (self.place(value), plain(value))).collect()
    }
}

/// A round number without superfluous zeros.
fn plain(value: f64) -> String {
    let text = format!("{value:.6}");
    let text = text.trim_end_matches('0').trim_end_matches('.');
    if text.is_empty() || text == "0" && value != 0.0 { format!("{value:e}") } else { text.into() }
}

#[cfg(test)]
mod tests {
    use super::super::join::join;
    use super::super::record::{MADE_UP, parse};
    use super::*;

    fn made_up(text: &str) -> Comparison {
        join(parse(text).expect("records")).expect("a comparison").remove(0)
    }

    #[test]
    fn every_result_is_a_bar_with_its_figure() {
        let text = svg(&made_up(MADE_UP), Quantity::Time).expect("a plot");
        assert!(text.starts_with("<svg") && text.trim_end().ends_with("</svg>"));
        let lines = |part: &str| text.lines().filter(|line| line.trim() == part).count();
        for figure in ["10.0", "2000", "80.0", "25.0", "30.0", "40.0", "0.800"] {
            assert_eq!(lines(figure), 1, "{figure}");
        }
        for label in ["flux", "hunyuan", "dense-4k", "forward", "backward", "NATTEN, published"] {
            assert_eq!(lines(label), 1, "{label}");
        }
        assert!(text.contains("NVIDIA H200, driver 1, 2000-01-02 to 2000-01-03"));
        assert!(text.contains("Time of a call, bf16, burst"));
        let rates = svg(&made_up(MADE_UP), Quantity::Rate).expect("a plot");
        assert!(rates.lines().any(|line| line.trim() == "515"));
    }

    #[test]
    fn figures_of_another_device_are_not_drawn() {
        let text = svg(&made_up(&MADE_UP.replace("H200", "H100")), Quantity::Time).expect("a plot");
        assert!(!text.contains("published"));
    }

    #[test]
    fn a_plot_without_times_is_empty_and_no_error() {
        let header = MADE_UP.lines().next().expect("a header");
        let failed = MADE_UP.lines().find(|line| line.contains("skipped")).expect("a row");
        let comparison = made_up(&format!("{header}\n{failed}\n"));
        let comparison = Comparison { device: "another".to_string(), ..comparison };
        for quantity in [Quantity::Time, Quantity::Rate] {
            assert!(svg(&comparison, quantity).expect("a plot").contains("</svg>"));
        }
    }

    #[test]
    fn scales_are_logarithmic_for_times_and_begin_at_zero_for_rates() {
        let comparison = made_up(MADE_UP);
        let times = Scale::new(&groups(&comparison, Quantity::Time), Quantity::Time);
        let decade = times.place(10.0) - times.place(1.0);
        assert!((times.place(100.0) - times.place(10.0) - decade).abs() <= 1);
        assert!(times.place(0.8) > 0 && times.place(2000.0) < PANEL);
        let rates = Scale::new(&groups(&comparison, Quantity::Rate), Quantity::Rate);
        assert_eq!(rates.place(0.0), 0);
        let labels: Vec<String> = rates.ticks().into_iter().map(|(_, label)| label).collect();
        assert_eq!(labels, ["0", "100", "200", "300", "400", "500", "600", "700"]);
    }
}
