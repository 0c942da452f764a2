//! User-data of every kind.

use std::io::Write as _;

use flate2::Compression;
use flate2::write::GzEncoder;

/// User-data that cloud-init understands.
pub struct Case {
    pub name: String,
    pub user_data: Vec<u8>,
    /// Whether removing the block again restores these bytes.
    pub comes_back: bool,
}

/// Texts that are restored. Those of several lines are also tried with other line ends, and without the last one.
/// `TEMPLATE` stands for the headers of a template for a cloud-config, `MIXED` for those of a message of several parts.
const COME_BACK: &[(&str, &str)] = &[
    ("one key", "#cloud-config\nhostname: a\n"),
    ("a comment only", "#cloud-config\n# nothing yet\n"),
    ("comments, quotes and order", "#cloud-config\n# b\nz: 'x' # c\n\na:\n- \"1\"\n-   x: {p: q}\n# end\n"),
    ("header in other case behind white space", "\n  #Cloud-Config\na: 1\n"),
    ("more behind the header", "#cloud-config-ish: really\na: 1\n"),
    ("indented", "#cloud-config\n  a: 1\n  b:\n   - 2\n"),
    ("document marks", "#cloud-config\n---\na: 1\n...\n# behind\n"),
    ("directive", "#cloud-config\n%YAML 1.1\n---\na: 1\n"),
    ("anchors", "#cloud-config\na: &x {k: 1}\nb: *x\nc:\n  <<: *x\n  d: 1\n"),
    ("merged as it says", "#cloud-config\na: 1\nmerge_how: 'dict(recurse_list)+list(append)'\n"),
    ("merged root", "#cloud-config\nbase: &b\n  phone: 1\n<<: *b\n"),
    ("literal at the end", "#cloud-config\na: |\n  text\n"),
    ("literal kept at the end", "#cloud-config\na: |+\n  text\n\n"),
    ("literal stripped at the end", "#cloud-config\nb: 1\na: |-\n  text\n"),
    ("folded at the end", "#cloud-config\na: >\n  te\n  xt\n"),
    ("plain over lines", "#cloud-config\na: one\n  two\n"),
    ("list without indent at the end", "#cloud-config\nruncmd:\n- [ls, -l]\n- echo 'a'\n"),
    ("flow over lines at column 0", "#cloud-config\na: {\nb: [\n1, 2\n]\n}\n"),
    ("explicit key", "#cloud-config\n? a\n: 1\n"),
    (
        "tags",
        "#cloud-config\na: !!str 1\nb: ! x\nc: !!set {d, e}\nf: !!binary YQ==\n!!str g: !<tag:yaml.org,2002:int> '1'\n",
    ),
    ("merged list", "#cloud-config\na: &a {b: 1}\nc: {<<: [*a, {d: 2}], '<<': 3}\n=: '='\n"),
    ("version directive of later YAML", "#cloud-config\n%YAML 1.2\n---\na: 1\n"),
    (
        "times and numbers",
        "#cloud-config\na: 2024-02-29\nb: [2024-2-30, 1999-12-31T23:59:59.5 +5:30, 2024-01-01 1:02:03Z, 2024-13-01 x, \
         0b_1, -0x_f]\n\
         c: ! 1\nd: [!!int '-1:30', !!int 0o17, !!int 0x_1F, !!float 1.5e-3, !!float '.5', !!float -.INF, !!float \
         1:30.5]\n\
         e: [!!bool oN, !!null x, !!binary 'Y Q==!', !!binary '', !!timestamp 2024-2-3, !!timestamp '2024-02-03 \
         1:02:03.25-1']\n",
    ),
    (
        "merged by aliases",
        "#cloud-config\na: &a {b: 1}\nb: &b [*a, {c: 2}]\nc: &c d\ne: {<<: *b, *c : f}\ng: {<<: []}\n",
    ),
    ("lists of pairs", "#cloud-config\na: !!omap [b: 1, {c: [2]}]\nd: !!pairs\n- e: 1\n- e: 2\n"),
    ("tag directive", "#cloud-config\n%TAG !e! tag:yaml.org,2002:\n---\na: !e!str 1\n"),
    ("null value", "#cloud-config\na:\n"),
    ("looks like one", "#cloud-config\na:\n  phone_homes: 1\nb: |\n  phone_hom: 1\n"),
    ("characters outside ASCII", "#cloud-config\na: ü \"\u{1f980}\"\n"),
    ("what is merged right where it is", "#cloud-config\n<<: {a: 1, l: [x]}\nb:\n  <<: &d {c: {d: 2}}\n  e: *d\n"),
    ("what is merged in lines", "#cloud-config\n<<:\n  a: 1\n  b:\n  - c\nd: 2\n"),
    (
        "quotes that go on in any column",
        "#cloud-config\na: \"one\ntwo\"\n# it's\nb:\n  c: 'it''s\n\n\tx' # \"\n  d: [\"x\\\n\ty\", z]\ne: it's \"f\n\
         g: \"\\\"\nh\n...i\"\n",
    ),
    ("tabs where they may be", "#cloud-config\na: 'x\ty' # c\td\nb: |\n  \tx\nc: \"\t\"\n#\te\n"),
    ("one more mime-version in a comment", "#cloud-config\n# MIME-Version: 1.0\na: 1\n"),
    ("braces", "#cloud-config\n{a: 1, b: [2, {c: 3}]}\n"),
    ("braces over lines", "#cloud-config\n{\n  \"a\": 1,\n  \"b\": {}\n}\n"),
    ("braces with comments", "#cloud-config\n{\n  # about a\n  a: 1, # of a\n  # about b\n  b: 2 # of b\n  # end\n}\n"),
    ("braces with nothing but a comment", "#cloud-config\n{ # none\n}\n"),
    ("braces with nothing but space", "#cloud-config\n{  }\n"),
    ("braces with comments behind keys without values", "#cloud-config\n{a # c\n, b: 1, c # d\n}\n"),
    ("tags in brackets", "#cloud-config\na: [!<tag:yaml.org,2002:str> 1, !!str , ! x]\n"),
    ("braces with an explicit key", "#cloud-config\n{? a, b: 1}\n"),
    ("braces with an anchored key", "#cloud-config\n{&x a: 1, !!str b: *x, c: , d}\n"),
    ("braces with a last comma", "#cloud-config\n{ a: 1, }\n"),
    ("script", "#!/bin/sh\necho \"$1\" # --x\n\n"),
    ("script outside ASCII", "#!/bin/sh\necho ü\n"),
    ("script with a boundary in it", "#!/bin/sh\ncat <<X\n--slipway-phone-home--\nX\n"),
    ("script with mime-version", "#!/bin/sh\n# mime-version: 1.0\ntrue\n"),
    ("boothook", "#cloud-boothook\n#!/bin/sh\ntrue\n"),
    ("include", "#include\nhttp://site/config\nhttp://site/script\n"),
    ("include in its line", "#include http://site/script\n"),
    ("part handler", "#part-handler\ndef list_types():\n    return []\n"),
    ("JSON patch", "#cloud-config-jsonp\n[{\"op\": \"add\", \"path\": \"/a\", \"value\": 1}]\n"),
    ("archive", "#cloud-config-archive\n- type: text/cloud-config\n  content: |\n    a: 1\n- |\n  #!/bin/sh\n  true\n"),
    ("archive of texts", "#cloud-config-archive\n- \"#cloud-config\\na: 1\"\n# end\n"),
    ("archive indented", "#cloud-config-archive\n  - content: |\n      #cloud-config\n      a: 1\n    filename: x\n"),
    (
        "archive with other fields",
        "#cloud-config-archive\n- {content: '#!/bin/sh', filename: 1, launch-index: 0, X-Y: z, 'no': null, type: }\n\
         - 12\n- [a]\n",
    ),
    ("archive in brackets", "#cloud-config-archive\n[{\"content\": \"#cloud-config\\na: 1\\n\"}, \"#!/bin/sh\"]\n"),
    (
        "archive of a template",
        "#cloud-config-archive\n- |\n  ## template: jinja\n  #cloud-config\n  a: {{ v1.region }}\n",
    ),
    ("template", "TEMPLATE\nhostname: {{ v1.local_hostname }}-1\n"),
    ("template of a script", "## template: jinja\n#!/bin/sh\necho {{ v1.region }}\n"),
    ("template that starts with a statement", "## template: jinja\n{% set a = 1 %}\n#cloud-config\na: {{ a }}\n"),
    ("template that takes a margin away", "TEMPLATE\n{% if true -%}\n  packages: [a]\n{%- endif %}\n"),
    (
        "template that takes margins away twice",
        "TEMPLATE\n{% if true -%}\n  a: 1\n{% endif -%}\n{% if true -%}\n  b: 2\n{% endif %}\n",
    ),
    ("template that has a comment with a margin", "TEMPLATE\n  {# hello #}\na: 1\n"),
    ("template that has a statement with a margin", "TEMPLATE\n  {% set x = 1 %}\na: 1\n"),
    ("template that has a comment that takes a margin away", "TEMPLATE\n{# c -#}\n  k0: 1"),
    ("template that is trimmed", "TEMPLATE\n{% filter trim %}\n  k0: 1\n{% endfilter %}\n"),
    ("template that has a loop with a margin", "TEMPLATE\n{%+ for q in [1] -%}\n  k0: \n  sub: 1\n\n  {%+ endfor %}\n"),
    ("template that sets a text of lines", "TEMPLATE\n{% set x %}\nphone_home: 1\n{% endset %}\na: \"{{ x }}\"\n"),
    ("template that has a comment in a comment", "TEMPLATE\n# about {# x #}\nphone_home: {url: old}\nb: 1\nc: 2\n"),
    ("template with raw", "TEMPLATE\na: '{% raw %}{{ x }}{% endraw %}'\n"),
    ("template with white space control", "TEMPLATE\na: 1\n{% if true -%}\nb: 1\n{%- endif -%}\n"),
    ("template with its only key behind a statement", "TEMPLATE\n{% if true %}a: 1{% endif %}\n"),
    ("template over lines", "TEMPLATE\na: {{\n v1.region }}\n"),
    (
        "template with statements within",
        "TEMPLATE\n{% if v1.region == 'x' %}\na: 1\n{% else %}\na: 2\n{% endif %}\nb: \"{{ '}}' }}\"\n",
    ),
    ("template of lines", "TEMPLATE\na: |\n  {{ ds.meta_data.lines | indent(2) }}\n"),
    (
        "message",
        "Content-Type: multipart/mixed; boundary=\"=B=\"\nMIME-Version: 1.0\n\npreamble\n--=B=\n\
         Content-Type: text/cloud-config\n\n\
         #cloud-config\na: 1\n--=B=\nContent-Type: text/x-shellscript; charset=\"us-ascii\"\n\
         Content-Disposition: attachment; filename=\"x.sh\"\n\n#!/bin/sh\ntrue\n--=B=--\nepilogue\n",
    ),
    (
        "message in base64",
        "MIXED;\n\tBOUNDARY=b\n\n--b\nContent-Type: text/cloud-config\n\
         Content-Transfer-Encoding: base64\n\nI2Nsb3VkLWNvbmZpZwphOiDDvAo=\n--b--\n",
    ),
    (
        "message in a message",
        "MIXED; boundary=o\n\n--o\nContent-Type: multipart/mixed; boundary=i\n\n\
         --i\n\n#cloud-config\na: 1\n--i--\n--o\nContent-Type: text/plain\n\n#cloud-config\nb: 2\n--o--\n",
    ),
    (
        "message with a merge type",
        "MIXED; boundary=o\n\n--o\nContent-Type: text/cloud-config\n\
         Merge-Type: list(append)+dict(no_replace)+str()\n\n#cloud-config\na: [1]\n--o--\n",
    ),
    ("message with a boundary in brackets", "MIXED; boundary=<b>\n\n--b\n\n#cloud-config\na: 1\n--b--\n"),
    (
        "message with a boundary in quotes and brackets",
        "MIXED; boundary=\"<b>\"\n\n--b\n\n#cloud-config\na: 1\n--b--\n",
    ),
    (
        "message with a boundary in a character set",
        "MIXED; boundary*=Latin-1''b%20c\n\n--b c\n\n#cloud-config\na: 1\n--b c--\n",
    ),
    ("message with a boundary in pieces", "MIXED; boundary*1=c; boundary*0=\"'b\"\n\n--'bc\n\n#!/bin/sh\n--'bc--\n"),
    (
        "message in quoted-printable",
        "MIXED; boundary=b\n\n--b\nContent-Type: text/cloud-config\n\
         Content-Transfer-Encoding: quoted-printable\n\n#cloud-config\na: \"=3D =\nb\"\nc: =E4=\n\n--b--\n",
    ),
    ("message of one part", "Content-Type: text/x-shellscript\nMIME-Version: 1.0\n\n#!/bin/sh\ntrue\n"),
    ("message of a cloud-config without header", "Content-Type: text/cloud-config\nMIME-Version: 1.0\n\na: 1\n"),
];

/// Texts that are not restored, because they already had a block, were empty, or had no line end at the end.
const OTHERS: &[(&str, &str)] = &[
    ("nothing", ""),
    ("white space", " \n\n"),
    ("a header", "#cloud-config\n"),
    ("a header and a mark", "#cloud-config\n--- # none\n"),
    ("empty braces", "#cloud-config\n{}\n"),
    ("braces with a comment", "#cloud-config\n{ # one\n  a: 1}\n"),
    ("mapping", "#cloud-config\na: 1\nphone_home:\n  url: http://old/$INSTANCE_ID/\n  post:\n  - pub_key_rsa\nb: 2\n"),
    ("null", "#cloud-config\nphone_home:\n# of b\nb: 2\n"),
    ("list", "#cloud-config\nphone_home: [1, 2,\n  3]\n"),
    ("scalar", "#cloud-config\na: 1\n'phone_home': >\n  one\n  # still text\n\n  two\n"),
    ("several", "#cloud-config\nphone_home: a\nb: 1\nphone_home: {url: x}\n"),
    ("with an escape", "#cloud-config\n\"phone\\u005fhome\": {url: x}\n\"phone\\x5fhome\": 1\nb: 1\n"),
    ("with an anchored key", "#cloud-config\n&k phone_home: 1\nb: *k\n"),
    ("with an alias for a key, in braces", "#cloud-config\n{k: &k phone_home, *k : {url: http://old/}}\n"),
    ("with an alias for a key", "#cloud-config\nk: &k phone_home\n*k : {url: http://old/}\na: |\n  text"),
    ("with an alias for an explicit key", "#cloud-config\nk: [&k phone_home]\n? *k\n: 1\na: >-\n  text\n"),
    ("with a tagged key", "#cloud-config\n!!str phone_home: 1\nb: 1\n"),
    ("merged by a list", "#cloud-config\n<<: [{phone_home: 1}, {c: 2}]\n"),
    ("with a merge inside", "#cloud-config\nb: &b {url: 1}\nphone_home: {<<: *b}\n"),
    ("explicit", "#cloud-config\n? phone_home\n: url: x\nb: 1\n"),
    ("merged", "#cloud-config\nbase: &b\n  phone_home: {url: x}\n<<: *b\n"),
    ("anchor used elsewhere", "#cloud-config\nphone_home: &x {url: a}\nb: *x\n"),
    ("anchor of another", "#cloud-config\nb: &x {url: a}\nphone_home: *x\n"),
    ("before a literal without end", "#cloud-config\nphone_home: 1\na: |\n  text"),
    ("in braces", "#cloud-config\n{\"phone_home\": {\"url\": \"x\"}, a: 1, phone_home: 2}\n"),
    ("in braces with comments", "#cloud-config\n{phone_home: {url: x}, # of ph\n # of a\n a: 1}\n"),
    ("in braces with comments at the end", "#cloud-config\n{\n  b: 2, # of b\n  phone_home: {url: x} # of ph\n}\n"),
    ("in braces with comments, twice", "#cloud-config\n{phone_home: {url: x}, # 1\n # 2\n phone_home: y,\n # 3\n}\n"),
    ("in braces, at the end of a line with a comment", "#cloud-config\n{b: 2, # of b\n  phone_home: {url: x}}\n"),
    (
        "in braces, between commas on their own lines",
        "#cloud-config\n{ a: 1 # a\n, phone_home: {url: x} # ph\n, b: 2 # b\n}\n",
    ),
    ("in braces alone", "#cloud-config\n{phone_home: {url: x}, }\n"),
    ("old line separators", "#cloud-config\na: \"x\u{2028}  y\"\n"),
    ("template with an end", "TEMPLATE\n{% if true %}\na: 1\n{% endif %}\n"),
    ("template with an end in a line", "TEMPLATE\na: {% if true %}1{% endif %}\n"),
    ("template with a comment at the end", "TEMPLATE\na: 1\n{# end #}\n"),
    ("template with one", "TEMPLATE\nphone_home:\n  url: http://{{ v1.region }}/\na: 1\n"),
    (
        "template with one in parts",
        "TEMPLATE\nphone_home:\n{% if true %}\n  url: a\n{% else %}\n  url: b\n{% endif %}\na: 1\n",
    ),
    (
        "message with one",
        "MIXED; boundary=o\n\n--o\nContent-Type: text/cloud-config\n\nphone_home: 1\n\
         --o\n\n#cloud-config\na: 1\nphone_home: 2\n--o\n\n#!/bin/sh\n--o\n\n#cloud-config\nphone_home: 3\n--o--\n",
    ),
    (
        "message in quoted-printable with one",
        "MIXED; boundary=b\n\n--b\nContent-Type: text/cloud-config\n\
         Content-Transfer-Encoding: Quoted-Printable\n\na: 1\nphone=5Fhome: {url: x}\n--b--\n",
    ),
    ("message without end", "MIXED; boundary=o\n\n--o\n\n#!/bin/sh\ntrue\n"),
    ("message with twice a boundary", "MIXED; boundary=o\n\n--o\n--o--\n\n#!/bin/sh\n"),
    (
        "message without end, of a config with one",
        "MIXED; boundary=o\n\n--o\n\n#cloud-config\na: |\n  x\nphone_home: 1\n",
    ),
    (
        "archive of types with one",
        "#cloud-config-archive\n- {content: \"#cloud-config\\nphone_home: 1\", type: text/x-shellscript}\n",
    ),
    (
        "archive of merged parts",
        "#cloud-config-archive\n- &d {type: text/x-shellscript, content: \"#!/bin/sh\"}\n\
         - <<: *d\n  content: \"phone_home: 1\"\n",
    ),
    ("message without anything", "MIXED; boundary=a:b"),
    ("merged by nothing cloud-init knows", "#cloud-config\nmerge_how: x\na: 1\n"),
    ("merged by lists alone", "#cloud-config\nmerge_type: list()\na: 1\n"),
    ("message without parts", "MIXED; boundary=o\n\n"),
    (
        "archive with one",
        "#cloud-config-archive\n- type: text/cloud-config\n  content: 'phone_home: 1'\n- '#!/bin/sh'\n",
    ),
    ("archive with one as a text", "#cloud-config-archive\n- '#!/bin/sh'\n- |\n\n  #cloud-config\n  phone_home: 1\n"),
    (
        "archive of keys that look like numbers",
        "#cloud-config-archive\n- type: text/cloud-config\n  content: |\n    a: 1\n  x-serial: 089\n",
    ),
    ("archive of nothing", "#cloud-config-archive\n"),
];

/// Everything cloud-init understands.
pub fn cases() -> Vec<Case> {
    let mut cases = Vec::new();
    let mut add = |name: String, text: &[u8], comes_back: bool| {
        cases.push(Case { name, user_data: text.to_owned(), comes_back });
    };
    for (texts, comes_back) in [(COME_BACK, true), (OTHERS, false)] {
        for (name, text) in texts {
            let text = text.replace("TEMPLATE", "## template: jinja\n#cloud-config");
            let text = text.replace("MIXED", "MIME-Version: 1.0\nContent-Type: multipart/mixed");
            add((*name).to_owned(), text.as_bytes(), comes_back);
            let open = text.trim_end_matches('\n');
            // A text that becomes only the header of a block cannot be restored.
            add(format!("{name}, without a last line end"), open.as_bytes(), comes_back);
            add(format!("{name}, CR LF"), text.replace('\n', "\r\n").as_bytes(), comes_back);
            add(format!("{name}, compressed"), &compressed(text.as_bytes()), false);
        }
    }
    add("YAML with CR".to_owned(), b"#cloud-config\ra: 1\rb:\r- 2\r", true);
    let many = format!("#cloud-config\n{}a: 1\n", "# c\n".repeat(200));
    let members = [&compressed(b"#cloud-config\na: 1\n")[..], b"\0\0", &compressed(b"b: 2\n"), b"\0\0\0"].concat();
    add("compressed in two members with zeros behind".to_owned(), &members, false);
    add("many comments".to_owned(), many.as_bytes(), true);
    add("message with its mark just inside".to_owned(), marked(4096).as_bytes(), true);
    let outside = format!("#cloud-config\n#{}\n# MIME-Version: 1.0\na: \u{fc}\n", "-".repeat(4096));
    add("one more mime-version too far inside".to_owned(), outside.as_bytes(), true);
    cases
}

/// User-data that cloud-init does not understand, the position where that shows, and the message about it.
pub fn refused() -> Vec<(Vec<u8>, &'static str, &'static str)> {
    let texts: &[(&str, &str, &str)] = &[
        ("hello\n", "1:1: ", "cloud-init does not recognise"),
        ("# a comment\n", "1:1: ", "cloud-init does not recognise"),
        ("\n\n  a: 1\n", "3:3: ", "cloud-init does not recognise"),
        ("\u{feff}#cloud-config\na: 1\n", "1:1: ", "byte order mark"),
        ("#cloud-config\nhello\n", "2:1: ", "is a scalar"),
        ("#cloud-config\n\n- a\n", "3:1: ", "is a list"),
        ("#cloud-config\na: 1\n---\nb: 1\n", "3:1: ", "second document"),
        ("#cloud-config\na: [1\nb: 2\n", "3:2: ", "not YAML"),
        ("#cloud-config\na: \"x\u{7}\"\n", "2:6: ", "not YAML"),
        ("#cloud-config\n\"a\nb\": 1\n", "3:3: ", "not YAML"),
        ("#cloud-config\na:\n  {\"b\n\tc\": 1}\n", "3:4: ", "a key of several lines"),
        ("#cloud-config\na: \"x\n--- y\"\n", "3:1: ", "not YAML"),
        ("#cloud-config\na: \"x\ny\"\nb: !c d\n", "4:4: ", "does not support this tag"),
        ("#cloud-config\na: \"x\ny\"\nb: [c\n", "4:4: ", "not YAML"),
        ("#cloud-config\na: \"x\ny\n", "3:1: ", "not YAML"),
        ("#cloud-config\na: [http://b/?c=d]\n", "2:5: ", "a ? in text within brackets"),
        ("#cloud-config\n...\na: 1\n", "2:1: ", "ends before it begins"),
        ("#cloud-config\n...\n", "2:1: ", "ends before it begins"),
        ("#cloud-config\na:\t1\n", "2:3: ", "tabs only"),
        ("#cloud-config\na: 1\t2\n", "2:5: ", "tabs only"),
        ("#cloud-config\na: '1'\t# b\n", "2:7: ", "tabs only"),
        ("#cloud-config\na: 1\n\t\n", "3:1: ", "tabs only"),
        ("#cloud-config\na: |\t\t\t", "2:5: ", "tabs only"),
        ("#cloud-config\na: |\t\n", "2:5: ", "tabs only"),
        ("#cloud-config\na: >+\t\n\n\n", "2:6: ", "tabs only"),
        ("#cloud-config\na: |\t# c\nb: 1\n", "2:5: ", "tabs only"),
        ("#cloud-config\na: |\t\n  text\n", "2:5: ", "tabs only"),
        ("#cloud-config\na: *b\n", "2:4: ", "not YAML"),
        ("#cloud-config\na: !foo x\n", "2:4: ", "does not support this tag"),
        ("#cloud-config\na: !!python/tuple [1]\n", "2:4: ", "does not support this tag"),
        ("#cloud-config\n? [a]\n: b\n", "2:3: ", "a list or a mapping as a key"),
        ("#cloud-config\n{a: 1, {b: 1}: 2}\n", "2:8: ", "a list or a mapping as a key"),
        (
            "MIME-Version: 1.0\nContent-Type: multipart/mixed; boundary*=''b; boundary*0=b\n\n--b\n\n#cloud-config\n\
             a: 1\n--b--\n",
            "1:1: ",
            "has no boundary",
        ),
        (
            "MIME-Version: 1.0\nContent-Type: multipart/mixed; boundary*=utf-16''b\n\n--b\n\n#cloud-config\na: 1\n\
             --b--\n",
            "1:1: ",
            "has no boundary",
        ),
        ("#cloud-config-archive\na: 1\n", "2:1: ", "an archive is a list"),
        ("#cloud-config-archive\n- &a {content: b}\n- {content: c, X: *a}\n", "3:1: ", "cloud-init fails on this part"),
        ("#cloud-config-archive\n- &a [b]\n- content: *a\n", "3:1: ", "cloud-init fails on this part"),
        ("#cloud-config-archive\n- '#!/bin/sh'\n- content:\n    a: 1\n", "3:1: ", "cloud-init fails on this part"),
        ("#cloud-config-archive\n- a\n", "2:1: ", "its line 1, column 1: the root of the document is a scalar"),
        (
            "#cloud-config-archive\n- type: text/cloud-config\n  content: |\n    a: 1\n    b: [\n",
            "2:1: ",
            "because of its line 2, column 4: this is not YAML",
        ),
        ("#cloud-config-jsonp\n[{\"op\": \"add\", }]\n", "2:16: ", "this is not JSON"),
        ("#cloud-config-jsonp\n{\"a\": 1}\n", "1:20: ", "list of operations"),
        ("#include\nsite.yaml\n", "2:1: ", "this is not a URL"),
        ("I2Nsb3VkLWNvbmZpZwphOiAxCg==\n", "1:1: ", "it is in base64"),
        ("H4sIAAAAAAAAA1NOzskvTdFNzs9Ly0znSrRSMOQCAHDEFHUUAAAA", "1:1: ", "it is in base64"),
        ("<!DOCTYPE html>\n<html><body>log in</body></html>\n", "1:1: ", "looks like a web page"),
        ("# cloud-config\na: 1\n", "1:1: ", "neither a space"),
        ("#cloud_config\na: 1\n", "1:1: ", "neither a space"),
        ("packages: [a]\n", "1:1: ", "begin a cloud-config with"),
        ("variant: fcos\nversion: 1.5.0\n", "1:1: ", "Butane"),
        ("#\0c\0l\0o\0u\0d\0-\0c\0o\0n\0f\0i\0g\0\n\0", "1:1: ", "UTF-16"),
        (
            "MIXED; boundary=b\n\n--b\nContent-Type: text/cloud-config\n\n#cloud-config\na: [\n--b--\n",
            "8:4: ",
            "not YAML",
        ),
        ("MIXED; boundary=b\n\n--b\n\n#cloud-config\n- a\n--b--\n", "7:1: ", "is a list"),
        ("MIXED; boundary=b\n\n--b\nContent-Type: text/plain\n\nhello\n--b--\n", "7:1: ", "does not recognise"),
        (
            "MIXED; boundary=b\n\n--b\nContent-Type: text/cloud-config\nContent-Transfer-Encoding: base64\n\nLSBhCg==\n\
             --b--\n",
            "8:1: ",
            "because of its line 1, column 1: the root of the document is a list",
        ),
        // The same without its last `=`, which Python adds.
        (
            "MIXED; boundary=b\n\n--b\nContent-Type: text/cloud-config\nContent-Transfer-Encoding: base64\n\nLSBhCg\n\
             --b--\n",
            "8:1: ",
            "because of its line 1, column 1: the root of the document is a list",
        ),
        (
            "MIXED; boundary=b\n\n--b\nContent-Type: text/cloud-config\nContent-Transfer-Encoding: base64\n\nLSBhC\n\
             --b--\n",
            "8:1: ",
            "column 1: it is not in base64, although its header says so",
        ),
        (
            "MIXED; boundary=b\n\n--b\nContent-Type: text/cloud-config\nContent-Transfer-Encoding: base64\n\n!/bin/sh\n\
             --b--\n",
            "8:1: ",
            "column 1: it is not in base64, although its header says so",
        ),
        // A cloud-config in Latin-1.
        (
            "MIXED; boundary=b\n\n--b\nContent-Type: text/cloud-config\nContent-Transfer-Encoding: base64\n\n\
             I2Nsb3VkLWNvbmZpZwphOiDkCg==\n--b--\n",
            "8:1: ",
            "column 1: it is not text in UTF-8",
        ),
        (
            "MIXED; boundary=b\n\n--b\nContent-Type: application/gzip\nContent-Transfer-Encoding: base64\n\nH4sIAAAA\n\
             --b--\n",
            "8:1: ",
            "cannot be unpacked",
        ),
        ("#cloud-config-archive\n- content:\n", "2:1: ", "cloud-init fails on this part"),
        ("#cloud-config-archive\n- {content: 12, type: text/plain}\n", "2:1: ", "cloud-init fails on this part"),
        ("#cloud-config-archive\n- content: a\n  type: cloud-config\n", "2:1: ", "cloud-init fails on this part"),
        ("#cloud-config-archive\n- content: a\n  type: [text/plain]\n", "2:1: ", "cloud-init fails on this part"),
        ("#cloud-config-archive\n- content: a\n  x: 1.5\n", "2:1: ", "cloud-init fails on this part"),
        ("#cloud-config-archive\n- content: a\n  yes: b\n", "2:1: ", "cloud-init fails on this part"),
        (" ## template: jinja\n#cloud-config\na: 1\n", "1:1: ", "first line"),
        ("## template: jinja2\n#cloud-config\na: 1\n", "1:1: ", "header"),
        ("## template: jinja\n#cloud-config-archive\n- '#!/bin/sh'\n", "2:1: ", "cloud-config or a script"),
        ("## template: jinja\nhello\n", "2:1: ", "cloud-init does not recognise"),
        ("MIME-Version: 1.0\nContent-Type: multipart/mixed\n\n--b\n\n#!/bin/sh\n--b--\n", "1:1: ", "boundary"),
        (
            "MIME-Version: 1.0\nContent-Type: multipart/mixed; boundary=b\n c\n\n--b\n\n#!/bin/sh\n--b--\n",
            "1:1: ",
            "boundary",
        ),
    ];
    let mixed = |text: &str| text.replace("MIXED", "MIME-Version: 1.0\nContent-Type: multipart/mixed").into_bytes();
    let mut refused: Vec<_> = texts.iter().map(|(text, at, why)| (mixed(text), *at, *why)).collect();
    let twice = compressed(&compressed(b"#cloud-config\na: 1\n"));
    refused.push((twice, "1:1: ", "compressed twice"));
    refused.push((marked(4097).into_bytes(), "1:1: ", "cloud-init does not recognise"));
    refused.push((b"#cloud-config\na: \xff\n".to_vec(), "2:4: ", "not UTF-8"));
    let mut cut = compressed(b"#cloud-config\na: 1\n");
    cut.truncate(cut.len() - 3);
    refused.push((cut, "1:1: ", "cannot be unpacked"));
    let behind = [&compressed(b"#cloud-config\na: 1\n")[..], b"\0x"].concat();
    refused.push((behind, "1:1: ", "something else follows"));
    refused
}

/// A message whose `MIME-Version:` ends at this byte. cloud-init looks at the first 4096 bytes.
fn marked(end: usize) -> String {
    let head = "Content-Type: multipart/mixed; boundary=b\nX: ";
    let rest = "\nMIME-Version: 1.0\n\n--b\n\n#!/bin/sh\n--b--\n";
    let padding = end - head.len() - "\nMIME-Version:".len();
    format!("{head}{}{rest}", "-".repeat(padding))
}

fn compressed(text: &[u8]) -> Vec<u8> {
    let mut encoder = GzEncoder::new(Vec::new(), Compression::fast());
    encoder.write_all(text).unwrap();
    encoder.finish().unwrap()
}
