//! From losses of training steps, as the example `vision_transformer --losses` writes them, to a plot.

use std::path::PathBuf;

use clap::Args;
use plotters::prelude::*;
use serde::Deserialize;

use crate::Outcome;

#[derive(Args, Debug)]
pub struct Flags {
    /// Losses; a curve for each device, type, optimizer and seed
    #[arg(required = true)]
    files: Vec<PathBuf>,
    /// Writes this SVG file
    #[arg(long)]
    out: PathBuf,
}

/// A line of a file.
#[derive(Deserialize)]
struct Row {
    device: String,
    dtype: String,
    optimizer: String,
    seed: u64,
    step: usize,
    loss: f64,
}

/// The losses of a training.
#[derive(Debug, PartialEq)]
struct Curve {
    name: String,
    /// Step and loss.
    points: Vec<(usize, f64)>,
}

/// Steps that a line of the plot is the mean of.
const MEAN: usize = 10;
const SIZE: (u32, u32) = (900, 520);
/// Those that do not tell red from green tell them apart (after Okabe and Ito).
const COLOURS: [RGBColor; 6] = [
    RGBColor(0, 0, 0),
    RGBColor(0, 114, 178),
    RGBColor(230, 159, 0),
    RGBColor(0, 158, 115),
    RGBColor(204, 121, 167),
    RGBColor(86, 180, 233),
];

pub fn run(flags: &Flags) -> Outcome {
    let mut curves = vec![];
    for path in &flags.files {
        let fail = |error: &dyn std::fmt::Display| format!("{}: {error}", path.display());
        let text = std::fs::read_to_string(path).map_err(|error| fail(&error))?;
        read(&text, &mut curves).map_err(|error| fail(&error))?;
    }
    let text = svg(&curves)?;
    let out = flags.out.display();
    std::fs::write(&flags.out, text).map_err(|error| format!("--out {out}: {error}"))?;
    for curve in &curves {
        println!("{}", summary(curve, &curves[0]));
    }
    println!("{out}");
    Ok(())
}

/// Adds the rows of a file to the curves that they belong to.
fn read(text: &str, curves: &mut Vec<Curve>) -> Result<(), String> {
    let mut reader = csv::Reader::from_reader(text.as_bytes());
    for row in reader.deserialize() {
        let Row { device, dtype, optimizer, seed, step, loss } =
            row.map_err(|error| error.to_string())?;
        if !loss.is_finite() {
            return Err(format!("the loss of step {step} is {loss}"));
        }
        let name = format!("{device} {dtype}, {optimizer} optimizer, seed {seed}");
        match curves.iter_mut().find(|curve| curve.name == name) {
            Some(curve) => curve.points.push((step, loss)),
            None => curves.push(Curve { name, points: vec![(step, loss)] }),
        }
    }
    if curves.is_empty() { Err("has no losses".to_string()) } else { Ok(()) }
}

/// The mean of each point and those before it.
fn means(points: &[(usize, f64)]) -> Vec<(f64, f64)> {
    let mean = |end: usize| {
        let some = &points[(end + 1).saturating_sub(MEAN)..=end];
        some.iter().map(|(_, loss)| loss).sum::<f64>() / some.len() as f64
    };
    (0..points.len()).map(|place| (points[place].0 as f64, mean(place))).collect()
}

/// How a curve ends, and how far it gets from the first one.
fn summary(curve: &Curve, first: &Curve) -> String {
    let [own, other] = [curve, first].map(|curve| means(&curve.points));
    let last = own.last().map_or(f64::NAN, |(_, loss)| *loss);
    let apart = |steps: &dyn Fn(usize) -> bool| {
        let both = own.iter().zip(&other).enumerate().filter(|(place, _)| steps(*place));
        both.map(|(_, ((_, own), (_, other)))| (own - other).abs()).fold(0.0, f64::max)
    };
    let (early, all) = (apart(&|place| place < 2 * MEAN), apart(&|_| true));
    let name = &curve.name;
    format!(
        "{name:<44} ends at {last:.4}, at most {early:.4} from the first curve in {} steps, {all:.4} in all",
        2 * MEAN
    )
}

/// The plot as SVG text: each loss a point, and means over some steps a line.
fn svg(curves: &[Curve]) -> Result<String, String> {
    let mut text = String::new();
    draw(curves, &mut text).map_err(|error| error.to_string())?;
    Ok(text)
}

fn draw(curves: &[Curve], text: &mut String) -> Result<(), DrawingAreaErrorKind<std::io::Error>> {
    let points = || curves.iter().flat_map(|curve| &curve.points);
    let last = points().map(|(step, _)| *step).max().unwrap_or(0).max(1);
    let highest = points().map(|(_, loss)| *loss).fold(0.0, f64::max).max(1e-6);
    let area = SVGBackend::with_string(text, SIZE).into_drawing_area();
    area.fill(&WHITE)?;
    let mut chart = ChartBuilder::on(&area)
        .margin(16)
        .caption(format!("Loss of a step, and means of {MEAN}"), ("sans-serif", 18))
        .x_label_area_size(40)
        .y_label_area_size(56)
        .build_cartesian_2d(0.0..last as f64, 0.0..1.05 * highest)?;
    chart.configure_mesh().x_desc("step").y_desc("loss").disable_x_mesh().draw()?;
    for (curve, colour) in curves.iter().zip(COLOURS.iter().cycle()) {
        let dot = |(step, loss): &(usize, f64)| {
            Circle::new((*step as f64, *loss), 1, colour.mix(0.35).filled())
        };
        chart.draw_series(curve.points.iter().map(dot))?;
        let line = LineSeries::new(means(&curve.points), colour.stroke_width(2));
        let legend = move |(x, y)| PathElement::new([(x, y), (x + 20, y)], *colour);
        chart.draw_series(line)?.label(&curve.name).legend(legend);
    }
    chart.configure_series_labels().background_style(WHITE).draw()?;
    area.present()
}

#[cfg(test)]
mod tests {
    use super::*;

    const MADE_UP: &str = "device,dtype,optimizer,seed,step,loss\n\
                           flex,f32,own,1,0,2.5\nflex,f32,own,1,1,1.5\n\
                           cuda,bf16,own,1,0,2.75\ncuda,bf16,own,1,1,1.5\n";

    #[test]
    fn each_training_is_a_curve() {
        let mut curves = vec![];
        read(MADE_UP, &mut curves).expect("rows");
        assert_eq!(curves[1].points, [(0, 2.75), (1, 1.5)]);
        assert_eq!(means(&curves[0].points), [(0.0, 2.5), (1.0, 2.0)]);
        let text = summary(&curves[1], &curves[0]);
        assert!(text.contains("ends at 2.1250") && text.contains("0.2500 in all"), "{text}");
        let text = svg(&curves).expect("a plot");
        assert!(text.starts_with("<svg") && text.trim_end().ends_with("</svg>"));
        for name in ["flex f32, own optimizer, seed 1", "cuda bf16, own optimizer, seed 1"] {
            assert!(text.contains(name), "{name}");
        }
    }

    #[test]
    fn losses_that_are_none_are_refused() {
        let header = MADE_UP.lines().next().expect("a header");
        for (rows, part) in [("", "no losses"), ("flex,f32,own,1,7,NaN", "step 7"), ("x", "record")]
        {
            let error = read(&format!("{header}\n{rows}\n"), &mut vec![]).expect_err("is wrong");
            assert!(error.to_lowercase().contains(part), "{error}");
        }
    }
}
