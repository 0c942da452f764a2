//! Finds and runs test programs, and evaluates their output.

use std::collections::BTreeSet;
use std::fs::File;
use std::num::NonZero;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitStatus, Stdio};
use std::sync::Mutex;
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use serde::Deserialize;

use crate::host::command::{command, run_quietly, stdout, tail};
use crate::host::{files, workspace};
use crate::lab::target_image::System;

/// Maximum number of test programs at the same time, if there are as many processors. Each program runs one test at a
/// time, because an emulated machine uses a whole core and its time limits assume that it has one.
const AT_ONCE: usize = 2;

/// Tests of the server, by the beginnings of their names, that do not run on PostgreSQL: they are about the SQLite file
/// in its data folder, or about what no database has a part in, such as files, images and browsers.
const ON_SQLITE_ALONE: &[&str] = &[
    "admission::a_store_without_keys_lets_the_first_machine_of_a_node_with_work_in",
    "backups::",
    "data_folder::",
    "external_steps::a_snippet_",
    "foreseen::an_image_",
    "health::a_full_disk_is_a_problem_until_there_is_room",
    "images::a_damaged_partition_table_is_refused_in_every_format",
    "insides::",
    "keys_in_tokens::",
    "lost_database::",
    "measured_boot::a_site_that_has_nodes_already_goes_on_as_before_until_an_operator_asks_for_the_comparison",
    "media::",
    "media_over_https::",
    "named::each_shell_completes_commands_and_names",
    "network::cloud_init_makes_of_it_what_the_operator_meant",
    "no_values::",
    "operators::the_token_of_an_older_data_folder_goes_on_working",
    "page_in_browser::",
    "siege::",
];
/// Tests of the server, by the beginnings of their names, that do not run on SQLite: they are about PostgreSQL, about
/// several servers, which need it, or about a bucket, which such servers share.
const ON_POSTGRES_ALONE: &[&str] = &[
    "captures::a_disk_is_put_together_once_though_two_servers_are_asked_to",
    "captures::each_server_of_a_site_can_take_the_next_piece_of_a_disk",
    "clocks::of_two_servers_whose_clocks_are_far_apart_the_wrong_one_is_not_ready",
    "database_copy::",
    "databases::",
    "health::a_database_server_that_is_away_is_a_problem_until_it_is_back",
    "health::a_frozen_database_server_holds_up_no_answer",
    "health::a_read_only_database_is_a_problem_until_it_accepts_changes",
    "killed_servers::",
    "lost_postgres::",
    "objects::",
    "published::",
    "replicas::",
    "to_replicas::",
];

/// Prefix printed by a test that cannot check everything here, for lack of root, a tool or a kernel feature.
const NOT_CHECKED: &str = "not checked: ";

/// Time limit of a test program. One that takes longer hangs. The longest takes ten minutes on two cores.
const LIMIT: Duration = Duration::from_secs(60 * 60);
/// Polling interval of a running program.
const POLL: Duration = Duration::from_millis(100);

/// Whole-machine tests that take longer than two minutes, and therefore take turns: every second commit runs one. Each
/// is followed by the system that no other test installs, if there is one.
const LONG: [(&str, Option<System>); 9] = [
    ("a_lab_installs_a_machine_and_runs_a_check_in_it", None),
    ("an_encrypted_root_is_opened_by_its_own_tpm_and_by_no_other", Some(System::Dracut)),
    ("kernel_arguments_reach_debian_with_grub_and_outlive_its_updates", Some(System::Grub)),
    ("kernel_arguments_reach_entries_on_a_boot_partition_and_outlive_updates", Some(System::BootPartition)),
    ("a_running_system_is_drained_and_reinstalled_by_its_agent", None),
    ("a_system_of_ostree_and_ignition_reports_how_it_boots", Some(System::Ostree)),
    // What these machines boot takes minutes to build.
    ("an_arm64_machine_boots_by_firmware_and_has_its_disk_written", None),
    ("proxydhcp_starts_an_arm64_machine_by_tftp_in_one_hop", None),
    ("an_arm64_debian_is_installed_until_it_runs", Some(System::Arm64)),
];

/// Test programs that take more than forty seconds, by package and target or by target, without those of what slipway
/// promises first: that a system is installed until it runs, and that a power cut leaves no half-written disk that
/// boots. The longest come first, so that all turns take about as long.
const MEDIUM: [&str; 25] = [
    "user-data/image",
    "a_machine_reaches_its_server_through_a_proxy",
    "xtask/dist",
    "xtask/image",
    "a_node_is_known_by_its_tpm_and_no_other_machine_takes_its_place",
    "the_firmware_starts_what_was_installed_and_keeps_its_network_entries",
    "xtask/redfish",
    "a_boot_reporter_follows_a_system_and_holds_up_nothing_when_the_server_is_away",
    "xtask/schemathesis",
    "firmware_starts_the_boot_image_by_https_from_the_server_with_the_sites_ca",
    "arrays_with_parity_keep_what_steps_write",
    "a_stick_installs_a_machine_with_sata_nvme_and_an_intel_network_card",
    "a_medium_of_two_builds_stops_before_the_network",
    "secure_boot_starts_what_the_site_signed_and_refuses_each_modified_part",
    "a_machine_with_192_mib_is_installed_by_the_image_for_real_machines",
    "a_machines_screen_shows_what_it_does_and_leaves_panics_alone",
    "a_machine_in_setup_mode_is_enrolled_and_then_starts_only_what_is_signed",
    "ipxe_starts_the_boot_image_by_https_through_nginx",
    "a_captured_disk_is_written_again_as_it_was",
    "an_array_of_two_disks_carries_volumes_that_later_steps_fill",
    "a_machine_starts_and_enrols_in_a_network_with_ipv6_alone",
    "older_firmware_starts_the_boot_image_by_https_through_nginx",
    "a_machine_that_must_be_attested_is_let_in_only_with_boot_files_of_the_site",
    "a_kernel_without_a_signature_is_not_started_under_lockdown",
    "a_virtual_machine_is_told_its_server_by_its_metadata",
];
/// Number of commits until each of [`MEDIUM`] had its turn.
const TURNS: usize = 4;

/// Returns the tests that do not have their turn with this commit, each with the system that no other test installs.
pub fn left_out() -> Vec<(&'static str, Option<System>)> {
    let long = LONG.into_iter().enumerate().filter(|(n, _)| Some(*n) != turn()).map(|(_, long)| long);
    let medium = MEDIUM.into_iter().enumerate().filter(|(n, _)| n % TURNS != commit() % TURNS);
    long.chain(medium.map(|(_, name)| (name, None))).collect()
}

/// Returns the names of all tests that take turns.
pub fn in_turns() -> impl Iterator<Item = &'static str> {
    LONG.into_iter().map(|(name, _)| name).chain(MEDIUM)
}

/// Whether a test starts an arm64 machine.
pub fn is_arm64(test: &str) -> bool {
    test.contains("_arm64_")
}

/// Returns the index in [`LONG`] of this commit's test. Each commit has a fixed test or none.
fn turn() -> Option<usize> {
    commit().is_multiple_of(2).then(|| commit() / 2 % LONG.len())
}

/// Returns the number of commits up to this one, for checks that take turns. 0 if git cannot tell.
pub fn commit() -> usize {
    let count = stdout(command("git", ["rev-list", "--count", "HEAD"]).current_dir(workspace::root()));
    count.ok().and_then(|count| count.trim().parse().ok()).unwrap_or(0)
}

/// The sum of the test programs' results.
#[derive(Default)]
pub struct Tally {
    /// Tests that passed.
    pub passed: u32,
    /// Tests that failed.
    pub failed: u32,
    /// Tests that could not check everything.
    pub skipped: u32,
    /// Names of programs that ended without a summary, or with failures.
    pub broken: Vec<String>,
    /// The ends of what the failed tests said, to be printed again after everything else.
    pub failures: Vec<String>,
}

/// A test program.
#[derive(Clone)]
pub struct Program {
    /// Package and target, such as `server/api`.
    name: String,
    executable: PathBuf,
    /// The folder where cargo would run it.
    folder: PathBuf,
    /// The database on which the tests of the server run. `None` for other programs.
    database: Option<Database>,
}

/// A database of the server.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Database {
    Sqlite,
    Postgres,
}

impl Program {
    /// Whether this is the test program of the cargo target with this name, or of this package and target.
    pub fn is(&self, target: &str) -> bool {
        self.name == target || self.name.rsplit('/').next() == Some(target)
    }
}

/// Builds the test programs with `cargo`, a command that sets the target directory. Those that take longest come first.
pub fn programs(mut cargo: Command) -> Result<Vec<Program>> {
    cargo.args(["test", "--quiet", "--workspace", "--all-targets", "--no-run"]);
    let messages = stdout(cargo.args(["--message-format", "json-render-diagnostics"])).context("building the tests")?;
    let mut programs = Vec::new();
    for line in messages.lines() {
        let message: Message = serde_json::from_str(line).context("reading the messages of cargo about the tests")?;
        let (Some(executable), Some(target), Some(manifest)) =
            (message.executable, message.target, message.manifest_path)
        else {
            continue;
        };
        if !message.profile.is_some_and(|profile| profile.test) {
            continue;
        }
        let folder = manifest.parent().context("finding the folder of a package")?.to_owned();
        let package = folder.file_name().unwrap_or_default().display().to_string();
        programs.push(Program { name: format!("{package}/{}", target.name), executable, folder, database: None });
    }
    let api =
        programs.iter_mut().find(|program| program.name == "server/api").context("finding the tests of the server")?;
    api.database = Some(Database::Sqlite);
    let postgres = Some(Database::Postgres);
    let on_postgres = Program { name: format!("{}-on-postgresql", api.name), database: postgres, ..api.clone() };
    programs.push(on_postgres);
    let is_long = |program: &Program| LONG.iter().any(|(name, _)| program.is(name));
    // The longest first, so that none is left alone at the end.
    let place = |program: &Program| match program {
        program if is_long(program) => 0,
        program if program.database.is_some() => 1,
        program if program.folder.ends_with("qemu-tests") => 2,
        _ => 3,
    };
    programs.sort_by_key(place);
    Ok(programs)
}

/// A line of cargo's JSON output (The Cargo Book, "External tools").
#[derive(Deserialize)]
struct Message {
    executable: Option<PathBuf>,
    manifest_path: Option<PathBuf>,
    target: Option<Target>,
    profile: Option<Profile>,
}

#[derive(Deserialize)]
struct Target {
    name: String,
}

#[derive(Deserialize)]
struct Profile {
    test: bool,
}

/// Runs the programs, prints each one's output when it ends, and adds up their summaries. While a program runs, its
/// output is in a file of its name in the folder.
pub fn run_all(programs: Vec<Program>, which: Which<'_>, folder: &Path) -> Result<Tally> {
    files::create_dir(folder)?;
    let tally = Mutex::new(Tally::default());
    let waiting = Mutex::new(programs.into_iter());
    let next = || waiting.lock().ok()?.next();
    // Programs run in separate mount namespaces, if permitted. Otherwise namespaces that other programs create would
    // keep a program's mounts busy.
    let may_part = run_quietly(&mut command("unshare", ["--mount", "true"])).is_ok();
    let starter: &[&str] = if may_part { &["unshare", "--mount"] } else { &["env"] };
    thread::scope(|scope| {
        for _ in 0..AT_ONCE.min(thread::available_parallelism().map_or(1, NonZero::get)) {
            scope.spawn(|| {
                while let Some(program) = next() {
                    let began = Instant::now();
                    let said = run(&program, starter, which, folder);
                    let took = began.elapsed().as_secs();
                    let Ok(mut tally) = tally.lock() else { return };
                    match said {
                        Ok(said) => tally.hear(&program, &said, took),
                        Err(error) => {
                            println!("{}: {error:#}", program.name);
                            tally.failures.push(format!("{}: {error:#}", program.name));
                            tally.broken.push(program.name);
                        }
                    }
                }
            });
        }
    });
    Ok(tally.into_inner().unwrap_or_else(|poisoned| poisoned.into_inner()))
}

/// The output of a test program.
struct Said {
    out: String,
    errors: String,
    status: ExitStatus,
}

/// Which tests of a program run.
#[derive(Clone, Copy)]
pub struct Which<'a> {
    /// Only those whose names contain this.
    pub filter: Option<&'a str>,
    /// Those of the server on both databases, and not only on the one whose turn it is.
    pub all: bool,
}

/// Whether a test of the server runs on a database. `group` is the number of its module. Tests that are about neither
/// database take turns: each commit runs them on one.
fn runs_on(test: &str, database: Database, group: usize, which: Which<'_>, commit: usize) -> bool {
    let is_among = |alone: &[&str]| alone.iter().any(|beginning| test.starts_with(beginning));
    let (own, other) = match database {
        Database::Sqlite => (ON_SQLITE_ALONE, ON_POSTGRES_ALONE),
        Database::Postgres => (ON_POSTGRES_ALONE, ON_SQLITE_ALONE),
    };
    let is_its_turn = (group + commit).is_multiple_of(2) == (database == Database::Sqlite);
    let is_wanted = which.filter.is_none_or(|filter| test.contains(filter));
    is_wanted && !is_among(other) && (is_among(own) || is_its_turn || which.all || which.filter.is_some())
}

/// Returns the names of the server's tests that run on a database.
fn tests_on(program: &Program, database: Database, which: Which<'_>) -> Result<Vec<String>> {
    let mut list = command(&program.executable, ["--list", "--format", "terse"]);
    let list = stdout(list.current_dir(&program.folder)).context("listing the tests of the server")?;
    let tests: Vec<&str> = list.lines().filter_map(|line| line.strip_suffix(": test")).collect();
    let module = |test: &str| test.split("::").next().unwrap_or_default().to_owned();
    let modules: BTreeSet<String> = tests.iter().map(|test| module(test)).collect();
    let group = |test: &str| modules.iter().position(|known| *known == module(test)).unwrap_or_default();
    let commit = commit();
    let runs = tests.into_iter().filter(|test| runs_on(test, database, group(test), which, commit));
    Ok(runs.map(str::to_owned).collect())
}

fn run(program: &Program, starter: &[&str], which: Which<'_>, folder: &Path) -> Result<Said> {
    let name = program.name.replace('/', "-");
    let [out, errors] = ["out", "errors"].map(|end| folder.join(format!("{name}.{end}")));
    let create = |path: &Path| File::create(path).with_context(|| format!("creating {}", path.display()));
    let mut test = command(starter[0], &starter[1..]);
    test.arg(&program.executable).args(["--test-threads", "1", "--show-output"]);
    // With these variables, output would be mixed with test names, and log lines would differ from what tests expect.
    test.env_remove("RUST_TEST_NOCAPTURE").env_remove("SLIPWAY_LOG").env_remove("SLIPWAY_TEST_DATABASE");
    // Of a failure, the last lines are printed again: what it says, and not the frames of the test harness.
    test.env("RUST_BACKTRACE", "0");
    if program.database == Some(Database::Postgres) {
        test.env("SLIPWAY_TEST_DATABASE", "postgres");
    }
    match program.database {
        None => test.args(which.filter),
        // Without any name, all tests would run.
        Some(database) => test.args(["--exact", "none of them"]).args(tests_on(program, database, which)?),
    };
    for name in ["NO_PROXY", "no_proxy"] {
        // Tests must reach their servers without a proxy.
        let exceptions = std::env::var(name).unwrap_or_default();
        test.env(name, format!("{exceptions},127.0.0.1,localhost"));
    }
    test.current_dir(&program.folder).stdin(Stdio::null()).stdout(create(&out)?).stderr(create(&errors)?);
    let mut child = test.spawn().with_context(|| format!("starting {}", program.executable.display()))?;
    let deadline = Instant::now() + LIMIT;
    let status = loop {
        if let Some(status) = child.try_wait().context("waiting for the test program")? {
            break status;
        }
        if Instant::now() > deadline {
            child.kill().and_then(|()| child.wait()).context("killing the test program")?;
            let said = [files::read(&out)?, files::read(&errors)?].concat();
            let last = tail(&String::from_utf8_lossy(&said), 30);
            bail!("the test hangs: killed after {} minutes; the end of its output:\n{last}", LIMIT.as_secs() / 60);
        }
        thread::sleep(POLL);
    };
    let text = |path: &Path| Ok::<_, anyhow::Error>(String::from_utf8_lossy(&files::read(path)?).into_owned());
    Ok(Said { out: text(&out)?, errors: text(&errors)?, status })
}

/// Removes the output of passed tests from a program's output. Also returns the passed tests that did not check
/// everything, with what they lacked.
fn unchecked(said: &str) -> (String, Vec<(String, String)>) {
    let (mut text, mut unchecked) = (String::new(), Vec::new());
    let (mut in_passed, mut in_failed, mut test) = (false, false, "");
    for line in said.lines() {
        in_failed |= line == "failures:";
        in_passed = (in_passed || line == "successes:") && !in_failed && !line.starts_with("test result: ");
        if !in_passed {
            text.push_str(line);
            text.push('\n');
        } else if let Some(name) = line.strip_prefix("---- ").and_then(|line| line.strip_suffix(" stdout ----")) {
            test = name;
        } else if let Some(reason) = line.strip_prefix(NOT_CHECKED) {
            unchecked.push((test.to_owned(), reason.to_owned()));
        }
    }
    (text, unchecked)
}

/// Number of lines of a failure to print again.
const FAILURE: usize = 60;

impl Tally {
    /// Prints a program's output, unless it ran no tests, and adds its results.
    fn hear(&mut self, program: &Program, said: &Said, took: u64) {
        let (text, unchecked) = unchecked(&said.out);
        let is_good = self.add(&text, &unchecked) && said.status.success();
        if !text.contains("\nrunning 0 tests\n") || !is_good {
            println!("{} ({took} s){text}", program.name);
            unchecked.iter().for_each(|(test, reason)| println!("{test}: {NOT_CHECKED}{reason}"));
            eprint!("{}", said.errors);
        }
        if !is_good {
            let said = text.split_once("\nfailures:\n").map_or(&*said.errors, |(_, said)| said);
            self.failures.push(format!("{}:\n{}", program.name, tail(said, FAILURE)));
            self.broken.push(program.name.clone());
        }
    }

    /// Adds a program's results and its tests that did not check everything. Returns false if the summary is missing or
    /// has failures.
    fn add(&mut self, text: &str, unchecked: &[(String, String)]) -> bool {
        let counts = text.lines().filter_map(|line| line.strip_prefix("test result: ")).next_back();
        let Some(counts) = counts else { return false };
        let count = |name: &str| {
            let words = counts.split([' ', ';', '.']).collect::<Vec<_>>();
            let at = words.iter().position(|word| *word == name)?;
            words.get(at.checked_sub(1)?)?.parse::<u32>().ok()
        };
        let failed = count("failed").unwrap_or(0);
        let unchecked = unchecked.iter().map(|(test, _)| test).collect::<BTreeSet<_>>().len() as u32;
        self.passed += count("passed").unwrap_or(0).saturating_sub(unchecked);
        self.failed += failed;
        self.skipped += count("ignored").unwrap_or(0) + unchecked;
        failed == 0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const PASSED: &str = "\nrunning 3 tests\ntest a ... ok\ntest b ... ok\ntest c ... ok\n\nsuccesses:\n\n\
                          ---- a stdout ----\nhello\n\
                          not checked: no root\nnot checked: no loop devices\n\n---- c stdout ----\nfine\n\n\n\
                          successes:\n    a\n    \
                          b\n    c\n\ntest result: ok. 3 passed; 0 failed; 1 ignored; 0 measured\n\n";
    const FAILED: &str = "\nrunning 2 tests\ntest a ... ok\ntest b ... FAILED\n\nsuccesses:\n\n---- a stdout ----\n\
                          not checked: no root\n\n\n\
                          successes:\n    a\n\nfailures:\n\n---- b stdout ----\nsuccesses:\nwhy\n\n\nfailures:\n    b\n\
                          \n\
                          test result: FAILED. 1 passed; 1 failed; 0 ignored\n";

    #[test]
    fn each_test_of_the_server_runs_on_one_database_at_least() {
        for one in ON_SQLITE_ALONE {
            let is_same = |other: &&&str| other.starts_with(one) || one.starts_with(**other);
            assert_eq!(ON_POSTGRES_ALONE.iter().find(is_same), None, "{one} runs on none");
        }
    }

    #[test]
    fn each_test_of_the_server_runs_with_each_commit() {
        let which = Which { filter: None, all: false };
        let databases = [Database::Sqlite, Database::Postgres];
        for (test, group) in
            [("power::a", 0), ("power::a", 1), ("backups::a", 0), ("backups::a", 1), ("replicas::a", 0)]
        {
            let on = |commit: usize, which| databases.map(|database| runs_on(test, database, group, which, commit));
            let [even, odd] = [on(4, which), on(5, which)];
            assert_eq!((even.iter().filter(|on| **on).count(), odd.iter().filter(|on| **on).count()), (1, 1), "{test}");
            assert_eq!(even != odd, test.starts_with("power"), "{test} takes turns");
            let all = on(4, Which { filter: None, all: true });
            assert_eq!(all == [true, true], test.starts_with("power"), "{test}");
        }
    }

    #[test]
    fn what_was_not_checked_is_skipped_and_not_passed() {
        let check = |said: &str, expect: &[(&str, &str)], counts: (u32, u32, u32)| {
            let (text, found) = unchecked(said);
            let pairs: Vec<_> = found.iter().map(|(test, reason)| (test.as_str(), reason.as_str())).collect();
            assert_eq!(pairs, expect, "{text}");
            let mut tally = Tally::default();
            assert_eq!(tally.add(&text, &found), counts.1 == 0);
            assert_eq!((tally.passed, tally.failed, tally.skipped), counts);
            text
        };
        let text = check(PASSED, &[("a", "no root"), ("a", "no loop devices")], (2, 0, 2));
        assert!(text.contains("test c ... ok") && !text.contains("hello") && !text.contains("    c"), "{text}");
        let text = check(FAILED, &[("a", "no root")], (0, 1, 1));
        assert!(text.contains("\nwhy\n") && text.contains("---- b stdout"), "{text}");
        let own = "\nrunning 1 test\ntest a ... ignored\n\ntest result: ok. 0 passed; 0 failed; 1 ignored\n";
        check(own, &[], (0, 0, 1));
        assert!(!Tally::default().add("killed", &[]));
    }
}
