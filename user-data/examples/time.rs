//! Prints how long it takes to insert a block into a mebibyte of user-data of several kinds, and to remove it again.
#![allow(clippy::unwrap_used, reason = "an example")]

use std::time::Instant;

use slipway_user_data::{Block, Post, inject, remove};

const MIB: usize = 1 << 20;

/// A header and as many copies of a text as fit a mebibyte.
fn many(header: &str, text: impl Fn(usize) -> String) -> String {
    let mut all = header.to_owned();
    let mut n = 0;
    while all.len() < MIB {
        all.push_str(&text(n));
        n += 1;
    }
    all
}

fn main() {
    let block = Block { url: "https://s.example/v1/phone-home/t".to_owned(), post: Post::All, tries: None };
    let cloud_config = "#cloud-config\n";
    let one_line = |n| format!("{n}, ");
    let texts = [
        (
            "files",
            many("#cloud-config\nwrite_files:\n", |n| {
                format!(
                    "- path: /etc/file-{n}\n  owner: root:root # owner\n  content: |\n    {}\n",
                    "some text of a file\n    ".repeat(12)
                )
            }),
        ),
        ("keys", many(cloud_config, |n| format!("key_{n}: value\n"))),
        ("short keys", many(cloud_config, |n| format!("{n}:\n"))),
        ("one list", many("#cloud-config\na:\n", |_| "- b\n".to_owned())),
        ("one line", many("#cloud-config\na: [", one_line) + "1]\n"),
        ("blocks", many(cloud_config, |_| "phone_home: x\n".to_owned())),
        ("blocks in braces", many("#cloud-config\n{", |_| "phone_home: x, ".to_owned()) + "}"),
        ("anchors", many(cloud_config, |n| format!("a{n}: &a{n} 1\nb{n}: *a{n}\n"))),
        ("comments", many(cloud_config, |_| "# text\n".to_owned())),
        ("empty lines", many("#cloud-config\na: 1\n", |_| "\r".to_owned())),
        ("brackets", many("#cloud-config\na: ", |_| "[".to_owned())),
        ("tabs", many(cloud_config, |n| format!("a{n}: '\t'\n"))),
        ("expressions", many("## template: jinja\n#cloud-config\n", |n| format!("a{n}: {{{{ b }}}}\n"))),
        ("braces", many("## template: jinja\n#cloud-config\n", |_| "{".to_owned())),
        ("open comments", many("## template: jinja\n#cloud-config\n", |_| "{# ".to_owned())),
        ("script", many("#!/bin/sh\n", |n| format!("echo {n} ü\n"))),
        ("archive", many("#cloud-config-archive\n", |n| format!("- |\n  #cloud-config\n  a{n}: 1\n"))),
        (
            "message",
            many("MIME-Version: 1.0\nContent-Type: multipart/mixed; boundary=b\n\n", |n| {
                format!("--b\nContent-Type: text/cloud-config\n\na{n}: 1\nphone_home: {{url: x}}\n")
            }),
        ),
        ("headers", many("MIME-Version: 1.0\n", |n| format!("X-{n}: b\n"))),
    ];
    for (name, text) in texts {
        let began = Instant::now();
        let injected = inject(text.as_bytes(), &block);
        let took = began.elapsed();
        let began = Instant::now();
        let what = match injected {
            Ok(injected) => {
                _ = remove(&injected, &block.url).unwrap();
                "inserted, removed"
            }
            Err(_) => "refused",
        };
        println!("{name:18} {:7.1} ms {:7.1} ms {what}", took.as_secs_f64() * 1e3, began.elapsed().as_secs_f64() * 1e3);
    }
}
