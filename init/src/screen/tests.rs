use std::path::PathBuf;

use slipway_installer::screen::{Doing, State, Step};
use slipway_protocol::{Progress, Stage};

use super::head::Line;
use super::*;

const USUAL: Size = Size { columns: 80, rows: 24 };
const SMALL: Size = Size { columns: 40, rows: 12 };
const LARGE: Size = Size { columns: 118, rows: 50 };

fn view(doing: Doing) -> View {
    let link = link::Link {
        interface: "eth0".to_owned(),
        leased_at: 0,
        address: "192.0.2.17/24".to_owned(),
        gateway: Some("192.0.2.1".to_owned()),
        name_servers: Vec::new(),
        metadata: None,
    };
    let state = State {
        name: Some("web1".to_owned()),
        serial: Some("7CZ1234567".to_owned()),
        server: Some("https://install.example:8443/".to_owned()),
        page: Some("https://install.example:8443/nodes/0123456789abcdef".to_owned()),
        doing,
        ..State::default()
    };
    View { state, link: Some(link), log_key: Some("Alt+F2") }
}

fn held() -> View {
    let mut view = view(Doing::Held { code: "AK7M2Q".to_owned() });
    view.state.name = None;
    view.state.page = Some("https://install.example:8443/waiting?code=AK7M2Q".to_owned());
    view
}

fn installing() -> View {
    let progress = Progress {
        bytes: 1_395_864_371,
        total: Some(4 << 30),
        rate: 117_440_512,
        seconds_left: Some(25),
        waiting_for: Some(Stage::Write),
        ..Progress::default()
    };
    view(Doing::Step(Step {
        number: 2,
        of: 5,
        name: "write".to_owned(),
        attempt: 2,
        earlier: Some("fetching https://images.example/debian.raw.zst: the connection was reset".to_owned()),
        note: Some("/dev/nvme0n1 (Samsung PM9A3, 894.3 GiB): the only disk".to_owned()),
        progress: Some(progress),
    }))
}

fn failed() -> View {
    let reason = "checking the digest of https://images.example/debian.raw.zst: it is \
                  sha256:1111111111111111111111111111111111111111111111111111111111111111, and should be \
                  sha256:2222222222222222222222222222222222222222222222222222222222222222";
    view(Doing::Failed { step: Some((2, 5, "write".to_owned())), reason: reason.to_owned() })
}

fn came_back() -> View {
    let mut view = view(Doing::Idle);
    view.state.has_system = true;
    view
}

/// Each state at each size is a file, for people to look at. `UPDATE_GOLDEN=1` rewrites them.
#[test]
fn each_state_has_its_head_at_each_size() {
    let mut trouble = view(Doing::Enrolling);
    trouble.state.trouble =
        Some("enrolling at https://install.example:8443/v1/enrol: Connection refused (os error 111)".to_owned());
    let starting = View { log_key: Some("Alt+F2"), ..View::default() };
    let views = [
        ("starting", starting),
        ("trouble", trouble),
        ("held", held()),
        ("installing", installing()),
        ("failed", failed()),
        ("came-back", came_back()),
        ("leaving", view(Doing::Leaving)),
    ];
    let golden = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("src/screen/golden");
    for (name, view) in views {
        let mut all = String::new();
        for (size, charset) in
            [(USUAL, Charset::Blocks), (SMALL, Charset::Blocks), (LARGE, Charset::Blocks), (USUAL, Charset::Ascii)]
        {
            let lines = head::draw(&view, size, charset);
            let texts: Vec<String> = lines.iter().map(Line::text).collect();
            assert!(texts.iter().all(|line| line.chars().count() == size.columns), "{name} at {size:?}: {texts:#?}");
            assert!(lines.len() + 3 <= size.rows, "{name} at {size:?} leaves the log no room");
            all += &format!("{} x {}, {charset:?}\n", size.columns, size.rows);
            texts.iter().for_each(|line| all += &format!("|{}\n", line.trim_end()));
        }
        let file = golden.join(format!("{name}.txt"));
        if std::env::var_os("UPDATE_GOLDEN").is_some() {
            std::fs::create_dir_all(&golden).unwrap();
            std::fs::write(&file, &all).unwrap();
        }
        let expect = std::fs::read_to_string(&file).unwrap_or_default();
        assert!(all == expect, "{name} differs from {}:\n{all}", file.display());
    }
}

#[test]
fn a_camera_reads_the_address_of_the_page() {
    let page = held().state.page.unwrap();
    let lines = head::draw(&held(), USUAL, Charset::Blocks);
    let mut points: Vec<Vec<bool>> = Vec::new();
    for line in lines.iter().map(Line::text) {
        let right: Vec<char> = line.chars().skip(USUAL.columns - 37).collect();
        points.push(right.iter().map(|c| matches!(c, '█' | '▀')).collect());
        points.push(right.iter().map(|c| matches!(c, '█' | '▄')).collect());
    }
    // Each module is 8 by 8 pixels.
    let grey = |x: usize, y: usize| if points[y / 8][x / 8] { 255 } else { 0 };
    let mut picture = rqrr::PreparedImage::prepare_from_greyscale(37 * 8, points.len() * 8, grey);
    let read: Vec<String> = picture.detect_grids().iter().map(|grid| grid.decode().unwrap().1).collect();
    assert_eq!(read, [page]);
}

#[test]
fn no_text_gives_the_terminal_orders() {
    let evil = "\x1b[2J\x1b]0;owned\x07\u{9b}31m\n\r\u{202e}é".repeat(40);
    let mut view = view(Doing::Failed { step: Some((1, 1, evil.clone())), reason: evil.clone() });
    view.state.name = Some(evil.clone());
    view.state.serial = Some(evil.clone());
    view.state.server = Some(evil.clone());
    view.state.trouble = Some(evil.clone());
    view.link.as_mut().unwrap().interface = evil.clone();
    let checked = |view: &View| {
        for size in [USUAL, SMALL, LARGE, Size { columns: 30, rows: 8 }, Size { columns: 1, rows: 1 }] {
            for line in head::draw(view, size, Charset::Ascii).iter().map(Line::text) {
                assert!(line.bytes().all(|byte| byte.is_ascii_graphic() || byte == b' '), "{line:?}");
                assert!(line.len() == size.columns);
            }
        }
    };
    checked(&view);
    view.state.doing = Doing::Held { code: evil.clone() };
    checked(&view);
    let log = Log::default();
    log.add(&evil);
    assert!(!log.tail(1)[0].contains(|c: char| c.is_control() || c == '\u{202e}'), "{:?}", log.tail(1));
}

#[test]
fn only_what_changed_is_drawn_and_the_cursor_stays_in_the_log() {
    let log = Log::default();
    log.add("[    1.0] one");
    let mut painter = Painter::default();
    let mut paint = |view: &View, again| {
        let mut out = Vec::new();
        painter.paint(&mut out, &head::draw(view, USUAL, Charset::Ascii), USUAL, &log, again).unwrap();
        String::from_utf8(out).unwrap()
    };
    let mut view = installing();
    let first = paint(&view, false);
    let head = head::draw(&view, USUAL, Charset::Ascii).len();
    assert!(first.contains(&format!("\x1b[{};24r\x1b[{};1H", head + 1, head + 1)), "{first:?}");
    assert!(first.contains("[    1.0] one\r\n"), "{first:?}");
    assert_eq!(paint(&view, false), "");
    let Doing::Step(step) = &mut view.state.doing else { panic!() };
    step.progress.as_mut().unwrap().seconds_left = Some(24);
    let next = paint(&view, false);
    assert_eq!((next.matches("\x1b7").count(), next.matches("\x1b8").count()), (1, 1), "{next:?}");
    assert!(next.contains("24 s left") && next.starts_with("\x1b7") && next.ends_with("\x1b8"), "{next:?}");
    assert_eq!(paint(&view, true).matches("\x1b7").count(), head + 1);
}

#[test]
fn a_terminal_says_where_its_cursor_is() {
    for (said, expect) in [
        ("\x1b[24;80R", Some((24, 80))),
        ("xyz\x1b[1;2R\r", Some((1, 2))),
        ("\x1b[24;80", None),
        ("\x1b[0;80R", None),
        ("\x1b[99999;80R", None),
        ("\x1b[A\r\n", None),
        ("", None),
    ] {
        assert_eq!(serial::position(said.as_bytes()), expect, "{said:?}");
    }
}

#[test]
fn the_command_line_chooses_the_screen() {
    for (line, expect) in [
        ("console=tty0 quiet", Wanted::Asked),
        ("slipway.screen=off", Wanted::Off),
        ("slipway.screen=off slipway.screen=plain", Wanted::Plain),
        ("slipway.screen=full", Wanted::Full),
        ("slipway.screen=FULL", Wanted::Asked),
        ("slipway.screen", Wanted::Asked),
    ] {
        assert_eq!(wanted(line), expect, "{line}");
    }
}
