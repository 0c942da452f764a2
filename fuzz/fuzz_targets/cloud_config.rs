//! PyYAML, cloud-init's parser, reads a cloud-config with an injected block as the original plus the block. This is
//! slower than `user_data` by two orders of magnitude. `user_data` uses a parser written in Rust.
#![no_main]

use std::io::{BufReader, Read, Write};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::sync::{LazyLock, Mutex};

use slipway_user_data::{Block, Post, inject};

/// Program that reads two texts, each after its length, and answers with what is wrong with the second, after its
/// length.
const READER: &str = include_str!("../src/pyyaml.py");

static PYTHON: LazyLock<Mutex<Python>> = LazyLock::new(|| Mutex::new(Python::start()));

struct Python {
    questions: ChildStdin,
    answers: BufReader<ChildStdout>,
    _child: Child,
}

impl Python {
    fn start() -> Self {
        // Debian's packages are for the system's Python.
        let mut python = Command::new("/usr/bin/python3");
        let mut child =
            python.args(["-c", READER]).stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().expect("python3");
        let (questions, answers) = (child.stdin.take().expect("a pipe"), child.stdout.take().expect("a pipe"));
        Self { questions, answers: BufReader::new(answers), _child: child }
    }

    fn ask(&mut self, texts: [&[u8]; 2]) -> String {
        for text in texts {
            self.questions.write_all(&(text.len() as u32).to_le_bytes()).expect("python3 reads");
            self.questions.write_all(text).expect("python3 reads");
        }
        self.questions.flush().expect("python3 reads");
        let mut len = [0; 4];
        self.answers.read_exact(&mut len).expect("python3 answers");
        let mut answer = vec![0; u32::from_le_bytes(len) as usize];
        self.answers.read_exact(&mut answer).expect("python3 answers");
        String::from_utf8_lossy(&answer).into_owned()
    }
}

libfuzzer_sys::fuzz_target!(|user_data: &str| {
    let block = Block { url: "https://s.example/p".to_owned(), post: Post::All, tries: Some(3) };
    let user_data = format!("#cloud-config\n{user_data}");
    let Ok(injected) = inject(user_data.as_bytes(), &block) else { return };
    // User-data with MIME headers anywhere is a message, and then so is the result.
    if !injected.starts_with(b"#cloud-config\n") {
        return;
    }
    let wrong = PYTHON.lock().expect("no panic").ask([user_data.as_bytes(), &injected]);
    assert!(wrong.is_empty(), "{wrong}\nfrom: {user_data:?}\nto: {:?}", String::from_utf8_lossy(&injected));
});
