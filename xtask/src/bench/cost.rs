//! The cost of one run of a program.

use std::fs;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Instant;

use anyhow::{Context, Result, bail};

use crate::host::command::tail;
use crate::host::files;

/// Cost of one run.
#[derive(Clone, Copy, Debug, Default)]
pub struct Cost {
    /// Seconds from start to end.
    pub wall: f64,
    /// Seconds of processor time of the program and the children it waited for.
    pub cpu: f64,
    /// Largest resident size in MiB. With several processes, the size of the largest one.
    pub peak: f64,
    /// Share of all processors' time that was used during the run, including servers, kernel threads and anything else
    /// on the host.
    pub busy: f64,
}

/// Runs a program to its end under GNU time. Fails if the program does not exit with success.
pub fn measure(program: &str, arguments: &[&str], scratch: &Path) -> Result<Cost> {
    let (times, said) = (scratch.join("time"), scratch.join("said"));
    let mut command = Command::new("/usr/bin/time");
    command.args(["--format", "%U %S %M", "--output"]).arg(&times).arg(program).args(arguments);
    let output = fs::File::create(&said).with_context(|| format!("creating {}", said.display()))?;
    let copy = output.try_clone().with_context(|| format!("opening {}", said.display()))?;
    command.stdin(Stdio::null()).stdout(output).stderr(copy);
    let (began, before) = (Instant::now(), Processors::read()?);
    let status = command.status().context("starting time")?;
    let (wall, after) = (began.elapsed().as_secs_f64(), Processors::read()?);
    if !status.success() {
        let said = fs::read_to_string(&said).unwrap_or_default();
        bail!("running {program} {}: {status}\n{}", arguments.join(" "), tail(&said, 20));
    }
    let text = files::read_text(&times)?;
    let numbers: Vec<f64> = text.split_whitespace().filter_map(|word| word.parse().ok()).collect();
    let [user, system, kib] = numbers[..] else { bail!("reading the output of time: {text:?}") };
    Ok(Cost { wall, cpu: user + system, peak: kib / 1024.0, busy: after.busy_since(&before) })
}

/// Time of all processors together since boot, in ticks.
#[derive(Debug, PartialEq)]
struct Processors {
    idle: u64,
    all: u64,
}

impl Processors {
    fn read() -> Result<Self> {
        let text = fs::read_to_string("/proc/stat").context("reading /proc/stat")?;
        Self::parse(&text).context("reading /proc/stat: no line for all processors")
    }

    /// Reads the first line of /proc/stat (proc_stat(5)): user, nice, system, idle, iowait, irq, softirq, steal. The
    /// guest fields after them are already included in user and nice.
    fn parse(text: &str) -> Option<Self> {
        let fields = text.lines().next()?.strip_prefix("cpu ")?.split_whitespace();
        let ticks = fields.take(8).map(|field| field.parse().ok()).collect::<Option<Vec<u64>>>()?;
        Some(Self { idle: ticks.get(3)? + ticks.get(4)?, all: ticks.iter().sum() })
    }

    fn busy_since(&self, before: &Self) -> f64 {
        let idle = self.idle.saturating_sub(before.idle) as f64;
        1.0 - idle / self.all.saturating_sub(before.all).max(1) as f64
    }
}

/// Returns the processor time of a process and its ended children, in seconds (proc_pid_stat(5), fields 14 to 17).
pub fn cpu_of(process: u32) -> Result<f64> {
    const TICKS_PER_SECOND: f64 = 100.0;
    let path = format!("/proc/{process}/stat");
    let text = fs::read_to_string(&path).with_context(|| format!("reading {path}"))?;
    // The second field is the process name in parentheses, which may contain spaces.
    let fields = text.rsplit(") ").next().unwrap_or_default().split(' ');
    let ticks: f64 = fields.skip(11).take(4).filter_map(|field| field.parse::<f64>().ok()).sum();
    Ok(ticks / TICKS_PER_SECOND)
}

/// Returns the run with the median wall time. If their number is even, returns the faster of the middle two.
pub fn median(costs: &[Cost]) -> Cost {
    let mut sorted = costs.to_vec();
    sorted.sort_by(|a, b| a.wall.total_cmp(&b.wall));
    sorted.get((sorted.len().max(1) - 1) / 2).copied().unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_median_is_the_one_in_the_middle() {
        let costs =
            |walls: &[f64]| walls.iter().map(|wall| Cost { wall: *wall, ..Cost::default() }).collect::<Vec<_>>();
        assert_eq!(median(&costs(&[3.0, 1.0, 2.0])).wall, 2.0);
        assert_eq!(median(&costs(&[4.0, 1.0, 2.0, 3.0])).wall, 2.0);
        assert_eq!(median(&[]).wall, 0.0);
    }

    #[test]
    fn processors_are_busy_when_they_are_not_idle() {
        let parse = |text: &str| Processors::parse(text);
        let before = parse("cpu  1 2 3 4 5 6 7 8 9 10\ncpu0 1\n");
        assert_eq!(before, Some(Processors { idle: 9, all: 36 }));
        let after = parse("cpu  41 2 13 24 15 6 17 18\n");
        let busy = after.zip(before).map(|(after, before)| after.busy_since(&before));
        assert_eq!(busy, Some(0.7));
        for wrong in ["", "cpu 1 2 3 4\n", "cpu 1 2 3 x 5\n", "intr 1 2 3 4 5\n"] {
            assert_eq!(parse(wrong), None, "{wrong}");
        }
    }
}
