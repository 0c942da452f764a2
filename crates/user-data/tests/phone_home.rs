//! Injecting and removing a `phone_home` block, compared to the byte.

use std::io::Write as _;

use flate2::Compression;
use flate2::write::GzEncoder;
use slipway_protocol::PhoneHome;
use slipway_user_data::{Block, MAX_BYTES, Post, inject, inject_phone_home, quoted, remove, remove_text, url_problem};

const URL: &str = "https://s.example/v1/phone-home/t";

const BLOCK: &str = "phone_home:\n  url: \"https://s.example/v1/phone-home/t\"\n  post: all\n  tries: 20\n";

fn phone_home() -> PhoneHome {
    PhoneHome { url: URL.to_owned(), tries: Some(20) }
}

/// `BLOCK` in `expect` stands for the block, and `OPEN` for the block without its last line end.
fn check(user_data: &str, expect: &str) {
    let found = inject_phone_home(user_data, &phone_home()).map_err(|refusal| format!("{user_data:?}: {refusal}"));
    let expect = &expect.replace("BLOCK", BLOCK).replace("OPEN", BLOCK.trim_end());
    assert_eq!(found.as_ref(), Ok(expect), "from {user_data:?}");
    let again = found.and_then(|text| inject_phone_home(&text, &phone_home()).map_err(|refusal| refusal.to_string()));
    assert_eq!(again.map(|text| text.matches("phone_home").count()), Ok(expect.matches("phone_home").count()));
}

#[test]
fn nothing_becomes_the_header_and_the_block() {
    check("", "#cloud-config\nBLOCK");
    check(" \n\n", "#cloud-config\nBLOCK");
}

#[test]
fn the_block_is_appended_and_the_rest_stays() {
    check("#cloud-config\n", "#cloud-config\nBLOCK");
    check("#cloud-config", "#cloud-config\nOPEN");
    check("#Cloud-Config\na: 1\n", "#Cloud-Config\na: 1\nBLOCK");
    check("\n #cloud-config\na: 1\n", "\n #cloud-config\na: 1\nBLOCK");
    let expect = "#cloud-config\n# b\nz: 1 # c\n\na:\n- 1\n- x: {p: q}\nBLOCK";
    check("#cloud-config\n# b\nz: 1 # c\n\na:\n- 1\n- x: {p: q}\n", expect);
    check("#cloud-config\na: 1", "#cloud-config\na: 1\nOPEN");
    check("#cloud-config\n---\na: 1\n...\n", "#cloud-config\n---\na: 1\nBLOCK...\n");
    check("#cloud-config\n---\n", "#cloud-config\n---\nBLOCK");
    check("#cloud-config\na: ü \"\u{1f980}\"\nphone_home: 1\nb: é\n", "#cloud-config\na: ü \"\u{1f980}\"\nb: é\nBLOCK");
}

#[test]
fn every_top_level_phone_home_is_replaced() {
    for old in [
        "phone_home:\n  url: http://old/$INSTANCE_ID/\n  post:\n  - pub_key_rsa\n",
        "phone_home:\n",
        "phone_home: null\n",
        "phone_home: off # not now\n",
        "phone_home: [1, 2,\n  3]\n",
        "phone_home: {url: x,\n  post: all}\n",
        "\"phone_home\":\n  url: x\n",
        "'phone_home': >\n  one\n  # still text\n\n  two\n",
        "phone_home:\n- a\n-\n",
        "phone_home: a\nphone_home: b\n",
    ] {
        check(&format!("#cloud-config\na: 1\n{old}# of b\nb: 2\n"), "#cloud-config\na: 1\n# of b\nb: 2\nBLOCK");
        check(&format!("#cloud-config\n{old}"), "#cloud-config\nBLOCK");
        check(&format!("#cloud-config\na: 1\n{}", old.trim_end()), "#cloud-config\na: 1\nOPEN");
    }
}

#[test]
fn what_only_looks_like_a_phone_home_stays() {
    check("#cloud-config\na:\n  phone_home: 1\n", "#cloud-config\na:\n  phone_home: 1\nBLOCK");
    check("#cloud-config\na: |\n  phone_home: 1\nb: 2\n", "#cloud-config\na: |\n  phone_home: 1\nb: 2\nBLOCK");
    check("#cloud-config\n# phone_home: 1\na: 1\n", "#cloud-config\n# phone_home: 1\na: 1\nBLOCK");
    check("#cloud-config\nphone_homes: 1\n", "#cloud-config\nphone_homes: 1\nBLOCK");
}

#[test]
fn line_ends_and_indentation_follow_the_document() {
    let crlf = BLOCK.replace('\n', "\r\n");
    check_exact("#cloud-config\r\na: 1\r\nphone_home: x\r\n", &format!("#cloud-config\r\na: 1\r\n{crlf}"));
    check_exact("#cloud-config\r\na: 1", &format!("#cloud-config\r\na: 1\r\n{}", crlf.trim_end()));
    let indented = format!("  {}\n", BLOCK.trim_end().replace('\n', "\n  "));
    check_exact("#cloud-config\n  a: 1\n", &format!("#cloud-config\n  a: 1\n{indented}"));
}

fn check_exact(user_data: &str, expect: &str) {
    assert_eq!(
        inject_phone_home(user_data, &phone_home()).map_err(|refusal| refusal.to_string()),
        Ok(expect.to_owned())
    );
}

#[test]
fn a_block_scalar_without_a_last_line_break_keeps_its_value() {
    check("#cloud-config\nb: 1\na: |\n  text", "#cloud-config\nBLOCKb: 1\na: |\n  text");
    check("#cloud-config\nphone_home: 1\na: |\n  text", "#cloud-config\nBLOCKa: |\n  text");
    check("#cloud-config\na: |+\n  text\n\n", "#cloud-config\na: |+\n  text\n\nBLOCK");
}

#[test]
fn a_document_without_tries_leaves_them_to_cloud_init() {
    let phone_home = PhoneHome { url: "https://s.example/".to_owned(), tries: None };
    let expect = "#cloud-config\nphone_home:\n  url: \"https://s.example/\"\n  post: all\n";
    assert_eq!(inject_phone_home("", &phone_home).as_deref(), Ok(expect));
}

#[test]
fn braces_take_the_block_first() {
    let block = "\"phone_home\": {\"url\": \"https://s.example/v1/phone-home/t\", \"post\": \"all\", \"tries\": 20}";
    check_exact("#cloud-config\n{a: 1}\n", &format!("#cloud-config\n{{{block}, a: 1}}\n"));
    check_exact("#cloud-config\n{phone_home: x, a: 1 , phone_home: y}", &format!("#cloud-config\n{{{block}, a: 1}}"));
    check_exact("#cloud-config\n{}", &format!("#cloud-config\n{{{block}}}"));
    for (text, expect) in [
        ("{\n  # a\n  a: 1}", "{\n  # a\n  BLOCK, a: 1}"),
        ("{ # none\n}", "{ # none\nBLOCK}"),
        ("{? a, b: 1}", "{BLOCK, ? a, b: 1}"),
        ("{phone_home: {url: x}, # of it\n # of a\n a: 1}", "{BLOCK, \n # of a\n a: 1}"),
        ("{\n  b: 2, # of b\n  phone_home: x # of it\n}", "{\n  BLOCK, b: 2 # of b\n}"),
        ("{b: 2, # of b\n  phone_home: x}", "{BLOCK, b: 2 # of b\n}"),
        ("{a: 1\n # of it\n, phone_home: {url: x}\n, b: 2}", "{BLOCK, a: 1\n # of it\n, b: 2}"),
        ("{phone_home: x, # 1\n # 2\n phone_home: y, # 3\n # 4\n}", "{BLOCK\n # 2\n \n # 4\n}"),
    ] {
        let expect = format!("#cloud-config\n{}", expect.replace("BLOCK", block));
        check_exact(&format!("#cloud-config\n{text}"), &expect);
        check_exact(&expect, &expect);
    }
}

#[test]
fn a_template_stays_one() {
    let expect = "## template: jinja\n#cloud-config\na: {{ b }}-c\nBLOCK";
    check("## template: jinja\n#cloud-config\na: {{ b }}-c\n", expect);
    // jinja removes the line end after a statement.
    let text = "## template: jinja\n#cloud-config\n{% if b %}\na: 1\n{% endif %}\n";
    check(text, &format!("{text}\nBLOCK"));
    check_exact(&format!("{text}\n{BLOCK}"), &format!("{text}\n{BLOCK}"));
    let open = "## template: jinja\n#cloud-config\na: 1\n{# end #}";
    check_exact(open, &format!("{open}\n\n{}", BLOCK.trim_end()));
    check_exact(&format!("{open}\n\n{BLOCK}"), &format!("{open}\n\n{BLOCK}"));
}

#[test]
fn what_has_no_place_for_a_key_becomes_a_part() {
    let message = |part: &str| {
        format!(
            "Content-Type: multipart/mixed; boundary=\"slipway-phone-home\"\nMIME-Version: 1.0\n\n\
             --slipway-phone-home\n{part}\n\
             --slipway-phone-home\nContent-Type: text/cloud-config\n\n#cloud-config\n{BLOCK}--slipway-phone-home--\n"
        )
    };
    check_exact("#!/bin/sh\ntrue", &message("Content-Type: text/plain\n\n#!/bin/sh\ntrue"));
    let encoded = "Content-Type: text/plain\nContent-Transfer-Encoding: base64\n\nIyEvYmluL3NoCmVjaG8gw7wK";
    check_exact("#!/bin/sh\necho ü\n", &message(encoded));
    let single = "MIME-Version: 1.0\nContent-Type: text/x-shellscript\n\n#!/bin/sh\n";
    check_exact(single, &message(single));
}

#[test]
fn a_message_and_an_archive_get_one_more_part() {
    let message = "MIME-Version: 1.0\r\nContent-Type: multipart/mixed; boundary=b\r\n\r\n--b\r\n\r\n#!/bin/sh\r\n";
    let part = format!("--b\nContent-Type: text/cloud-config\n\n#cloud-config\n{BLOCK}").replace('\n', "\r\n");
    check_exact(&format!("{message}--b--\r\n"), &format!("{message}{part}--b--\r\n"));
    let item = format!(
        "- type: text/cloud-config\n  content: |\n    #cloud-config\n    {}\n",
        BLOCK.trim_end().replace('\n', "\n    ")
    );
    let expect = &format!("#cloud-config-archive\n- '#!/bin/sh'\n# end\n{}", item.trim_end());
    check_exact("#cloud-config-archive\n- '#!/bin/sh'\n# end", expect);
}

/// Joined lines, as the parser reads them, differ from what a part contains.
#[test]
fn quotes_in_an_archive_that_go_on_anywhere_are_refused() {
    let text = format!("#cloud-config-archive\n- \"phone_home: {{url: {URL}}} #\n\nruncmd: [x]\"\n");
    let refusal = inject_phone_home(&text, &phone_home()).expect_err("it has such quotes").to_string();
    assert!(refusal.starts_with("line 2, column 3: if the root is a list"), "{refusal}");
    check_removed(&text, &text);
}

/// Each such text causes another read, so the number allowed depends on the size of the whole.
#[test]
fn many_texts_in_quotes_may_go_on_anywhere() {
    let text = |many| format!("#cloud-config\na:\n{}", "- \"x\ny\"\n".repeat(many));
    check(&text(100), &format!("{}BLOCK", text(100)));
    let long = format!("{}# {}\n", text(20), "-".repeat(1 << 20));
    let refusal = inject_phone_home(&long, &phone_home()).expect_err("there are too many").to_string();
    assert!(refusal.contains("multiline quoted scalar"), "{refusal}");
}

#[test]
fn what_is_chosen_is_posted() {
    let block = |post: &str| Block { url: URL.to_owned(), post: post.parse::<Post>().expect("keys"), tries: None };
    let expect = format!("#cloud-config\nphone_home:\n  url: \"{URL}\"\n  post: [fqdn, pub_key_rsa]\n");
    assert_eq!(inject(b"", &block("fqdn, pub_key_rsa")), Ok(expect.into_bytes()));
    for spelled in ["all", "fqdn,pub_key_rsa"] {
        assert_eq!(block(spelled).post.to_string(), spelled);
    }
    let unknown = "fqdn,All".parse::<Post>().map_err(|error| error.to_string());
    assert!(unknown.is_err_and(|error| error.contains("\"All\"")));
}

#[test]
fn an_address_cloud_init_cannot_post_to_is_known() {
    for url in [URL, "http://a/$INSTANCE_ID/", "HTTPS://a/${INSTANCE_ID}?b=$", "https://a/%24x"] {
        assert_eq!(url_problem(url), None, "{url}");
    }
    for url in ["", "/a", "file:///a", "https://a/$TOKEN", "https://a/ b", "https://a/\n"] {
        assert!(url_problem(url).is_some(), "{url}");
    }
}

/// `BLOCK` in `user_data` stands for a block with the site's URL.
fn check_removed(user_data: &str, expect: &str) {
    let found = remove(user_data.replace("BLOCK", BLOCK).as_bytes(), URL).map_err(|refusal| refusal.to_string());
    assert_eq!(found.map(|bytes| String::from_utf8(bytes).expect("text")), Ok(expect.to_owned()), "from {user_data:?}");
}

#[test]
fn only_blocks_of_the_site_are_removed() {
    let others = "phone_home:\n  url: https://s.example/v1/phone-home/other\n";
    let text = &format!("#cloud-config\nBLOCK# of a\na: 1\n{others}BLOCK");
    check_removed(text, &format!("#cloud-config\n# of a\na: 1\n{others}"));
    check_removed(&format!("#cloud-config\n{{a: 1, phone_home: {{post: all, url: {URL}}}}}"), "#cloud-config\n{a: 1}");
    check_removed(&format!("#cloud-config\n{{phone_home: {{url: '{URL}'}},\n a: 1}}"), "#cloud-config\n{a: 1}");
    for (text, expect) in [
        ("{ # a\n  phone_home: {url: 'URL'}, }", "{ # a\n   }"),
        ("{ phone_home: {url: 'URL'} # 1\n # 2\n, # 3\n}", "{ \n # 2\n # 3\n}"),
        ("{a, # c\n phone_home: {url: 'URL'}}", "{a # c\n}"),
        ("{a: 1, # of a\n  phone_home: {url: 'URL'}, }", "{a: 1 # of a\n, }"),
        ("{a: 1, # of a\n # of it\n  phone_home: {url: 'URL'} # too\n}", "{a: 1 # of a\n # of it\n}"),
    ] {
        check_removed(&format!("#cloud-config\n{}", text.replace("URL", URL)), &format!("#cloud-config\n{expect}"));
    }
    check_removed("#cloud-config\na: 1\nphone_home: [url, x]\n", "#cloud-config\na: 1\nphone_home: [url, x]\n");
    let text = "## template: jinja\n#cloud-config\na: {{ b }}\nBLOCK";
    check_removed(text, "## template: jinja\n#cloud-config\na: {{ b }}\n");
    check_removed("#cloud-config\n# kept\nBLOCK", "#cloud-config\n# kept\n");
    // The line break of a block scalar belongs to it, whatever follows.
    let last = format!("phone_home: {{url: '{URL}'}}");
    for block in ["a: |\n  x\n", "a: >+\n  x\n\n", "a:\n- b: |2\n    x\n"] {
        check_removed(&format!("#cloud-config\n{block}{last}"), &format!("#cloud-config\n{block}"));
    }
    check_removed(&format!("#cloud-config\na: 1\n{last}"), "#cloud-config\na: 1");
}

#[test]
fn what_would_mean_something_else_without_a_block_goes_with_it() {
    check_removed("#cloud-config\nBLOCK...\n# foot\n", "#cloud-config\n# foot\n");
    check_removed("#cloud-config\n# head\nBLOCK...\n", "#cloud-config\n# head\n");
    check_removed("#cloud-config\n# head\nBLOCK... # foot\n", "#cloud-config\n# head\n # foot\n");
    check_removed("#cloud-config\n---\n# head\nBLOCK...\n# foot\n", "#cloud-config\n---\n# head\n...\n# foot\n");
    check_removed("#cloud-config\na: |+\n  x\n\nBLOCK\n", "#cloud-config\na: |+\n  x\n\n");
    check_removed("#cloud-config\na: |+\n  x\n\nBLOCK\n \n# b\nb: 1\n", "#cloud-config\na: |+\n  x\n\n# b\nb: 1\n");
    check_removed("#cloud-config\na: |\n  x\nBLOCK\nb: 1\n", "#cloud-config\na: |\n  x\n\nb: 1\n");
}

#[test]
fn blocks_to_every_address_of_a_site_are_removed() {
    let is_meant = |url: &str| url.starts_with("https://s.example/");
    let text = "#cloud-config\nphone_home: {url: https://s.example/a}\na: 1\nphone_home: {url: 'https://s.example/b'}\n\
                phone_home: {url: https://other.example/}\nphone_home:\n";
    let expect = "#cloud-config\na: 1\nphone_home: {url: https://other.example/}\nphone_home:\n";
    assert_eq!(remove_text(text, &is_meant), Ok(Some(expect.to_owned())));
    assert_eq!(remove_text(expect, &is_meant), Ok(None));
    assert_eq!(remove_text("a: [", &is_meant), Ok(None));
}

#[test]
fn nothing_left_is_empty() {
    check_removed("#cloud-config\nBLOCK", "");
    check_removed("#cloud-config\n---\nBLOCK\n...\n", "");
    check_removed(&format!("#cloud-config\n{{phone_home: {{url: {URL}}}}}\n"), "");
    check_removed(&format!("#cloud-config-archive\n- \"#cloud-config\\nphone_home: {{url: '{URL}'}}\"\n"), "");
}

#[test]
fn blocks_are_found_in_parts_of_every_sort() {
    let block = format!("phone_home: {{url: '{URL}'}}");
    let template = format!("## template: jinja\n#cloud-config\n{block}");
    let inline = |text: &str| text.replace('\n', "\n\n  ").replace('\'', "''");
    for part in [
        format!("- {{type: text/cloud-config, content: '{}'}}", inline(&block)),
        format!("- content: '{}'", inline(&block)),
        format!("- {{type: , content: '{}'}}", inline(&block)),
        format!("- '{}'", inline(&block)),
        format!("- '{}'", inline(&template)),
        format!("- {{type: Text/Jinja2, content: '{}'}}", inline(&template)),
        format!("- {{type: text/cloud-config; charset=utf-8, content: '{}'}}", inline(&block)),
    ] {
        check_removed(&format!("#cloud-config-archive\n- a\n{part}\n"), "#cloud-config-archive\n- a\n");
    }
    let (typed, config) = ("type: &t text/x-shellscript", inline(&block));
    for kept in [
        format!("- {{type: text/x-other, content: '#cloud-config\n\n  {block}'}}\n"),
        format!("- {{type: text/plain, content: '{}'}}\n", inline(&template)),
        format!("- {{type: text/x-shellscript, content: '#cloud-config\n\n  {config}'}}\n"),
        format!("- &d {{{typed}, content: '#!/bin/sh'}}\n- {{<<: *d, content: '{config}'}}\n"),
        format!("- {{{typed}, content: '#!/bin/sh'}}\n- {{type: *t, content: '{config}'}}\n"),
        format!("- {{X-k: &k type, *k : text/x-shellscript, content: '{config}'}}\n"),
    ] {
        check_removed(&format!("#cloud-config-archive\n{kept}"), &format!("#cloud-config-archive\n{kept}"));
    }
    let message = |part: &str| {
        format!("MIME-Version: 1.0\nContent-Type: multipart/mixed; boundary=b\n\n--b\n\n#!/bin/sh\n{part}--b--\n")
    };
    check_removed(&message(&format!("--b\nContent-Type: text/jinja2\n\n{template}\n")), &message(""));
    let archive = |items: &str| message(&format!("--b\n\n#cloud-config-archive\n- a\n{items}"));
    check_removed(&archive(&format!("- '{config}'\n")), &archive(""));
    let open = "MIME-Version: 1.0\nContent-Type: multipart/mixed; boundary=b\n\n--b\n\n#cloud-config\na: |\n  x\n";
    check_removed(&format!("{open}{block}\n"), &format!("{open}\n"));
}

#[test]
fn what_is_not_yaml_or_has_no_block_stays() {
    let configs = ["#cloud-config\na: [", "#cloud-config\n- a", "#cloud-config\n{}\n"];
    for text in ["", " \n", "hello", "#!/bin/sh\nphone_home"].into_iter().chain(configs) {
        check_removed(text, text);
    }
    assert_eq!(remove(b"\xff\0", URL), Ok(b"\xff\0".to_vec()));
    assert_eq!(remove(b"\x1f\x8b", URL), Ok(b"\x1f\x8b".to_vec()));
}

#[test]
fn a_block_that_something_depends_on_is_not_removed() {
    let refusal = |text: String| match remove(text.as_bytes(), URL) {
        Ok(bytes) => panic!("{text:?} became {:?}", String::from_utf8_lossy(&bytes)),
        Err(refusal) => refusal.to_string(),
    };
    let found = refusal(format!("#cloud-config\nphone_home: &x {{url: '{URL}'}}\na: *x\n"));
    assert!(found.starts_with("line 2, column 1: without this entry, other parts of the document"), "{found}");
    let found =
        refusal(format!("#cloud-config-archive\n- |\n  #cloud-config\n  a: 1\n  phone_home: {{url: '{URL}'}}\n"));
    assert!(found.starts_with("line 2, column 1: the phone_home block is among other keys"), "{found}");
}

#[test]
fn a_part_that_is_edited_keeps_its_encoding() {
    let message = |body: &str| {
        format!(
            "MIME-Version: 1.0\nContent-Type: multipart/mixed; boundary=b\n\n--b\nContent-Transfer-Encoding: base64\n\n\
             {body}\n--b--\n"
        )
    };
    // "#cloud-config\na: 1\nphone_home: {url: http://x}\n" and what remains of it.
    let with = message("I2Nsb3VkLWNvbmZpZwphOiAxCnBob25lX2hvbWU6IHt1cmw6IGh0\ndHA6Ly94fQo=");
    let without = message("I2Nsb3VkLWNvbmZpZwphOiAxCg==\n");
    assert_eq!(remove(with.as_bytes(), "http://x"), Ok(without.into_bytes()));
}

fn packed(bytes: &[u8]) -> Vec<u8> {
    let mut encoder = GzEncoder::new(Vec::new(), Compression::fast());
    encoder.write_all(bytes).and_then(|()| encoder.finish()).expect("a vector takes all")
}

#[test]
fn too_much_is_refused() {
    let much = vec![b'\n'; MAX_BYTES + 1];
    let refusal = |bytes: &[u8]| inject(bytes, &Block::from(&phone_home())).err().map(|refusal| refusal.to_string());
    assert!(refusal(&much).is_some_and(|text| text.contains("more than 16 MiB")));
    let half = packed(&vec![b'\n'; MAX_BYTES / 2 + 1]);
    assert_eq!(refusal(&half), None);
    assert!(refusal(&[&half[..], &half].concat()).is_some_and(|text| text.contains("more than 16 MiB when unpacked")));
    for (lists, brackets, is_taken) in [(127, 127, true), (127, 128, false), (254, 0, true), (0, 255, false)] {
        let deep =
            format!("#cloud-config\na:\n {}{}{}\n", "- ".repeat(lists), "[".repeat(brackets), "]".repeat(brackets));
        assert_eq!(inject_phone_home(&deep, &phone_home()).is_ok(), is_taken, "{lists} lists, {brackets} in brackets");
    }
}

/// Tries hostile or damaged texts: every text cut at any byte, and with any byte changed.
#[test]
fn damage_is_edited_or_refused_and_nothing_else() {
    let texts = [
        "#cloud-config\n---\n? a\n: &x {b: [1, 'ü']}\nd: |+\n  e\n\nphone_home: *x\n...\n",
        "#cloud-config\n{\"a\": {b: [1]}, phone_home: {url: x},}\n",
        "## template: jinja\n#cloud-config\na: {{ b | c('ü}}') }}\n{% if d -%}\nphone_home: {url: x}\n\
         {%- endif %}{# e #}\n",
        "#cloud-config-archive\n- '#cloud-config\n\n  phone_home: {url: x}'\n- content: |\n    a\n",
        "MIME-Version: 1.0\nContent-Type: multipart/mixed; boundary=\"b\"\n\n--b\n\
         Content-Type: multipart/x; boundary=c\n\n--c\n\n\
         #cloud-config\nphone_home: {url: x}\na: 1\n--c--\n--b--\n",
    ];
    let block = Block { url: "x".to_owned(), post: Post::All, tries: None };
    for text in texts {
        for at in 0..text.len() {
            let mut damaged = vec![text.as_bytes()[..at].to_vec()];
            damaged.extend([b'\n', b'\r', b' ', b'-', b':', b'{', b'}', b'"', b'#', b'|', 0xff, 0].map(|byte| {
                let mut bytes = text.as_bytes().to_vec();
                bytes[at] = byte;
                bytes
            }));
            for bytes in damaged {
                _ = remove(&bytes, "x");
                if let Ok(injected) = inject(&bytes, &block) {
                    let again = inject(&injected, &block).map(|_| ());
                    assert_eq!(again, Ok(()), "{:?}", String::from_utf8_lossy(&injected));
                    let removed = remove(&injected, "x").map(|_| ());
                    assert!(removed.is_ok() || bytes.starts_with(b"#cloud-config-archive"), "{removed:?}: {bytes:?}");
                }
            }
        }
    }
}

#[test]
fn quoted_text_survives_yaml() {
    assert_eq!(quoted("plain: # 'x'"), "\"plain: # 'x'\"");
    assert_eq!(quoted("a\"b\\c\nd\te\u{7}\u{85}"), "\"a\\\"b\\\\c\\nd\\te\\u0007\\u0085\"");
}

/// After many similar lines, the last ones take the block as they do alone.
#[test]
fn the_last_lines_take_the_block_however_many_there_are() {
    let many = |text: &str| text.repeat(500);
    let lists = [
        ("a:\n", "- b\n"),
        ("a: # of b\n", "  - - b\n"),
        ("a:\n\n", "  - b: |\n      - c\n    d:\n    - \"e\n      - f\"\n  # of the next\n"),
        ("a: &x\n", "-\n  b: 1\n- *x\n"),
        ("a: !!omap\n", "- b: 1\n"),
        ("\"a\":\n", "  b: 1\n  c:\n    - d\n"),
        ("? a\n:\n", "  b: [1,\n2]\n"),
    ];
    let ends = ["", "...\n", "# end\n", "\n\n"];
    for ((key, item), end) in lists.iter().flat_map(|list| ends.iter().map(move |end| (list, end))) {
        let text = |items: &str| format!("#cloud-config\nz: 1\n{key}{items}{end}");
        let found = inject_phone_home(&text(item), &phone_home()).expect("it is YAML").replacen(item, &many(item), 1);
        assert_eq!(inject_phone_home(&text(&many(item)), &phone_home()), Ok(found), "{:?}", text(item));
    }
}

/// The parser reports the position of such a key's text like that of a block scalar, so its lines tell nothing.
#[test]
fn nothing_goes_into_the_text_of_a_key() {
    let text = "#cloud-config\n? |2\n  c: ";
    let found = inject_phone_home(text, &phone_home()).expect("it is YAML");
    assert!(found.starts_with("Content-Type: multipart/mixed") && found.contains(text), "{found}");
}
