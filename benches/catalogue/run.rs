//! Runs the problems one after the other. Whatever fails is a row of the results, not an end.

use std::collections::HashSet;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::time::Duration;

use burn::tensor::Device;
use burn_natten::profile::{Mode, Pass, Peaks, Repeats, Timing, Workload, measure_peaks};
use burn_natten::{AttentionError, Strategy};
use burn_natten_kernels::catalogue::{self, Entry};
use burn_natten_kernels::cost::{Cost, DeviceModel};

use crate::args::{Args, Precision, When};
use crate::machine::Machine;
use crate::record::Record;
use crate::rows::Rows;
use crate::table::digits;
use crate::verify::{self, Errors};
use crate::{device, log, operator};

pub fn run(args: &Args) -> Result<(), String> {
    let entries = args.entries()?;
    let device = device::open(&args.device)?;
    for dtype in &args.dtype {
        if !device.supports_dtype(dtype.dtype()) {
            let (name, device) = (dtype.name(), &args.device);
            return Err(format!("--dtype: is {name}, which --device {device} cannot compute in"));
        }
    }
    log::print()?;
    let machine = Machine::read(&args.device);
    let mut rows = Rows::new(args.out.as_deref())?;
    let heading = heading(args, &machine, &device);
    eprintln!("{heading}");
    for entry in &entries {
        for &precision in &args.dtype {
            let mut done = HashSet::new();
            for strategy in args.strategies() {
                let row = Row { args, machine: &machine, device: &device, entry, precision };
                row.run(strategy, &mut done, &mut rows)?;
            }
            if args.burn && operator::has(&entry.problem) {
                let row = Row { args, machine: &machine, device: &device, entry, precision };
                row.run_operator(&mut rows)?;
            }
        }
    }
    rows.finish(&heading)
}

/// What the times were taken on, and what it reaches with simple work.
fn heading(args: &Args, machine: &Machine, device: &Device) -> String {
    let Machine { device: name, driver, date, commit } = machine;
    let mut text = format!("# Catalogue on {name}\n\n{date}, {driver}, commit `{commit}`.");
    for dtype in &args.dtype {
        let Peaks { matmul, copy } = measure_peaks(device, dtype.dtype());
        text += &format!(
            " Burn's {} matrix multiplication reaches {} TFLOP/s here, its multiplication by a \
             number, in place, {} GB/s.",
            dtype.name(),
            digits(matmul * 1e-12),
            digits(copy * 1e-9)
        );
    }
    text
}

/// One problem in one element type.
struct Row<'a> {
    args: &'a Args,
    machine: &'a Machine,
    device: &'a Device,
    entry: &'a Entry,
    precision: Precision,
}

impl Row<'_> {
    fn run(
        &self,
        strategy: Strategy,
        done: &mut HashSet<(Pass, String)>,
        rows: &mut Rows,
    ) -> Result<(), String> {
        let workload = self.workload(strategy);
        let mut rows_of = vec![];
        for &pass in &self.args.passes {
            let (name, reason) = match workload.tier(self.device) {
                Ok(tier) => (format!("{tier:?}"), self.too_slow(&workload, pass)),
                Err(error) => (format!("{strategy:?}"), Some(error.to_string())),
            };
            // Another strategy may have come to the same tier.
            if done.insert((pass, name.clone())) {
                rows_of.push((pass, format!("burn-natten/{name}"), reason));
            }
        }
        let runs = |asked: Pass| {
            rows_of.iter().any(|(pass, _, reason)| *pass == asked && reason.is_none())
        };
        let errors = match runs(Pass::Forward) || runs(Pass::Backward) {
            true => guarded(|| verify::verify(&workload, self.device, runs(Pass::Backward))),
            false => Err("was not run".to_string()),
        };
        for (pass, implementation, reason) in &rows_of {
            match reason.clone().map_or_else(|| self.judge(&errors, *pass), Err) {
                Ok(error) => self.time(implementation, *pass, error, rows, |repeats| {
                    pass.time(&workload, self.device, repeats)
                })?,
                Err(reason) => self.failed(implementation, *pass, &reason, rows)?,
            }
        }
        Ok(())
    }

    /// Burn's own operator.
    fn run_operator(&self, rows: &mut Rows) -> Result<(), String> {
        let workload = self.workload(Strategy::Auto);
        let errors = guarded(|| operator::verify(&workload, self.device).map_err(text));
        for &pass in &self.args.passes {
            let name = match pass {
                Pass::Forward => "burn/attention",
                Pass::Backward => "burn/attention, both passes",
            };
            match self.judge(&errors, pass) {
                Ok(error) => self.time(name, pass, error, rows, |repeats| {
                    operator::time_pass(&workload, self.device, pass, repeats)
                })?,
                Err(reason) => self.failed(name, pass, &reason, rows)?,
            }
        }
        Ok(())
    }

    fn workload(&self, strategy: Strategy) -> Workload {
        Workload {
            problem: self.entry.problem,
            dtype: self.precision.dtype(),
            strategy,
            context: self.args.context(),
        }
    }

    /// The error of a pass, unless it is too large or could not be found.
    fn judge(&self, errors: &Result<Errors, String>, pass: Pass) -> Result<f64, String> {
        let errors = errors.as_ref().map_err(String::clone)?;
        let error = match pass {
            Pass::Forward => errors.forward,
            Pass::Backward => errors.backward.unwrap_or(f64::INFINITY),
        };
        let bound = verify::bound(self.precision.dtype());
        if error <= bound {
            return Ok(error);
        }
        Err(format!("wrong: the error is {error:.1e}, must be at most {bound:.0e}"))
    }

    fn time(
        &self,
        implementation: &str,
        pass: Pass,
        error: f64,
        rows: &mut Rows,
        time: impl Fn(&Repeats) -> Result<Timing, AttentionError>,
    ) -> Result<(), String> {
        for (when, repeats) in self.args.repeats() {
            let mut record = self.record(implementation, pass, when);
            match guarded(|| time(&repeats).map_err(text)) {
                Ok(timing) => {
                    self.fill(&mut record, pass, &timing);
                    record.error = Some(error);
                }
                Err(reason) => record.note = reason,
            }
            rows.push(record)?;
        }
        Ok(())
    }

    fn fill(&self, record: &mut Record, pass: Pass, timing: &Timing) {
        let (q1, q3) = timing.quartiles();
        let seconds = timing.median().as_secs_f64();
        let size = self.precision.dtype().size();
        let cost = match pass {
            Pass::Forward => Cost::forward,
            Pass::Backward => Cost::backward,
        };
        // Operations and bytes do not depend on the model of a device.
        let Cost { flops, bytes, .. } = cost(&self.entry.problem, None, size, &DeviceModel::H200);
        record.ms = Some(seconds * 1e3);
        record.q1_ms = Some(q1.as_secs_f64() * 1e3);
        record.q3_ms = Some(q3.as_secs_f64() * 1e3);
        record.calls = Some(timing.calls());
        record.tflops = Some(flops as f64 / seconds * 1e-12);
        record.gbps = Some(bytes as f64 / seconds * 1e-9);
    }

    /// One row for each mode that has no time.
    fn failed(
        &self,
        implementation: &str,
        pass: Pass,
        reason: &str,
        rows: &mut Rows,
    ) -> Result<(), String> {
        for (when, _) in self.args.repeats() {
            let mut record = self.record(implementation, pass, when);
            record.note = reason.to_string();
            rows.push(record)?;
        }
        Ok(())
    }

    fn record(&self, implementation: &str, pass: Pass, when: When) -> Record {
        let Machine { device, driver, date, commit } = self.machine.clone();
        Record {
            problem: self.entry.name.to_string(),
            pass: pass.name().to_string(),
            implementation: implementation.to_string(),
            dtype: self.precision.name().to_string(),
            mode: when.name().to_string(),
            ms: None,
            q1_ms: None,
            q3_ms: None,
            calls: None,
            tflops: None,
            gbps: None,
            error: None,
            note: String::new(),
            device,
            driver,
            date,
            commit,
        }
    }

    /// Why a pass is not run, going by the rate at a shrunk problem of its kind, which is grown until
    /// a call lasts long enough to tell: small ones are all launch.
    fn too_slow(&self, workload: &Workload, pass: Pass) -> Option<String> {
        const TELLING: Duration = Duration::from_millis(20);
        let flops = self.entry.problem.forward_flops();
        let limit = self.args.limit(workload.strategy);
        if limit.is_infinite() {
            return None;
        }
        let repeats = Repeats {
            warmup: 1,
            samples: 1,
            min_sample: Duration::ZERO,
            idle: Duration::ZERO,
            ..Repeats::new(Mode::Burst)
        };
        let mut most = (flops / 16).min(1 << 29);
        loop {
            let probe = catalogue::shrunk(self.entry.problem, most);
            let small = Workload { problem: probe, ..*workload };
            // What fails here fails at full size too, and says so there.
            let timing = guarded(|| pass.time(&small, self.device, &repeats).map_err(text)).ok()?;
            let ratio = flops as f64 / probe.forward_flops() as f64;
            let seconds = timing.median().as_secs_f64() * ratio;
            if seconds <= limit {
                return None;
            }
            if timing.median() >= TELLING || most >= flops / 2 {
                return Some(format!(
                    "skipped: about {seconds:.1} s a call, the limit is {limit} s"
                ));
            }
            most *= 8;
        }
    }
}

fn text(error: AttentionError) -> String {
    error.to_string()
}

/// Runs `work`; a panic, which is how Burn reports that memory is exhausted, becomes an error.
fn guarded<T>(work: impl FnOnce() -> Result<T, String>) -> Result<T, String> {
    catch_unwind(AssertUnwindSafe(work)).unwrap_or_else(|panic| {
        let text = panic.downcast_ref::<String>().map(String::as_str);
        let text = text.or_else(|| panic.downcast_ref::<&str>().copied());
        Err(format!("panic: {}", text.unwrap_or("without a message")))
    })
}
