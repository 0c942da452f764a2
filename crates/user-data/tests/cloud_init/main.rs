//! cloud-init itself reads user-data before and after: the meaning stays the same, and the system reports.
#![allow(clippy::unwrap_used, reason = "tests")]

mod cases;
mod cloud_init;
mod damage;
mod network;
mod packages;

use serde_json::{Value, json};
use slipway_user_data::{Block, Post, check, inject, remove, trusting};

use crate::cases::{Case, cases, refused};
use crate::damage::Random;

const URL: &str = "https://s.example/v1/phone-home/t{{x}}?a=$INSTANCE_ID&ü=\u{1f980}";

/// Seed of the damage, so that it is the same every time.
const SEED: u64 = 1;
const DAMAGED: usize = 6000;

fn block() -> Block {
    Block { url: URL.to_owned(), post: "instance_id,hostname".parse::<Post>().unwrap(), tries: Some(20) }
}

#[test]
fn cloud_init_makes_the_same_of_it_and_reports() {
    let cases = cases();
    for case in &cases {
        assert_eq!(check(&case.user_data), Ok(()), "{}", case.name);
    }
    let injected: Vec<Vec<u8>> = cases
        .iter()
        .map(|case| inject(&case.user_data, &block()).unwrap_or_else(|refusal| panic!("{}: {refusal}", case.name)))
        .collect();
    let removed: Vec<Vec<u8>> = injected.iter().map(|bytes| remove(bytes, URL).unwrap()).collect();
    let mut all: Vec<&[u8]> = Vec::new();
    for ((case, injected), removed) in cases.iter().zip(&injected).zip(&removed) {
        all.extend([&case.user_data[..], injected, removed]);
    }
    let outcomes = cloud_init::process(&all);
    let mut wrong = Vec::new();
    for (index, case) in cases.iter().enumerate() {
        let [before, with, without] = &outcomes[3 * index..3 * index + 3] else { unreachable!() };
        let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
        if let Err(how) = compare(case, before, with, without, removed[index] == case.user_data) {
            wrong.push(format!(
                "{}: {how}\nfrom:\n{}\nto:\n{}\n",
                case.name,
                text(&case.user_data),
                text(&injected[index])
            ));
        }
    }
    assert!(wrong.is_empty(), "{} of {} cases:\n{}", wrong.len(), cases.len(), wrong.join("\n"));
}

/// Compares cloud-init's results for the original user-data, with the block, and with the block removed.
fn compare(case: &Case, before: &Value, with: &Value, without: &Value, is_back: bool) -> Result<(), String> {
    if !before["error"].is_null() {
        return Err(format!("cloud-init does not understand it to begin with: {}", before["error"]));
    }
    adds_the_block(before, with)?;
    let mut rest = before["config"].as_object().cloned().unwrap_or_default();
    let had = rest.remove("phone_home").is_some();
    if !had && with["schema"] != before["schema"] {
        return Err(format!("the schema says {}, not {}", with["schema"], before["schema"]));
    }
    let mut left = without["config"].as_object().cloned().unwrap_or_default();
    _ = left.remove("phone_home");
    if left != rest || without["parts"] != before["parts"] {
        return Err(format!("without the block it is {without}"));
    }
    if case.comes_back && !is_back {
        return Err("its bytes do not come back".to_owned());
    }
    Ok(())
}

fn adds_the_block(before: &Value, with: &Value) -> Result<(), String> {
    let mut expect = before["config"].as_object().cloned().unwrap_or_default();
    expect.insert("phone_home".to_owned(), json!({"url": URL, "post": ["instance_id", "hostname"], "tries": 20}));
    if with["config"].as_object() != Some(&expect) {
        return Err(format!("the cloud-config is {}, not {} ({})", with["config"], Value::from(expect), with["error"]));
    }
    if with["parts"] != before["parts"] {
        return Err(format!("the parts are {}, not {}", with["parts"], before["parts"]));
    }
    Ok(())
}

/// What cloud-init understands keeps its meaning, and the system reports.
#[test]
fn whatever_is_taken_of_damaged_texts_reports() {
    let corpus = std::fs::read_dir(concat!(env!("CARGO_MANIFEST_DIR"), "/../../fuzz/corpus/user_data")).unwrap();
    let mut files: Vec<_> = corpus.map(|entry| entry.unwrap().path()).collect();
    files.sort();
    let mut texts: Vec<Vec<u8>> = files.iter().map(|file| std::fs::read(file).unwrap()).collect();
    texts.extend(cases().into_iter().map(|case| case.user_data).filter(|bytes| std::str::from_utf8(bytes).is_ok()));
    let mut random = Random::new(SEED);
    let damaged = texts.iter().cycle().map(|text| damage::damaged(text, &mut random));
    let taken = damaged.take(DAMAGED).filter_map(|text| Some((inject(&text, &block()).ok()?, text)));
    let taken: Vec<[Vec<u8>; 2]> = taken.map(|(injected, text)| [text, injected]).collect();
    assert!(taken.len() > DAMAGED / 4, "{} of {DAMAGED} are taken", taken.len());
    let all: Vec<&[u8]> = taken.iter().flatten().map(|bytes| &bytes[..]).collect();
    let mut wrong = Vec::new();
    for (outcomes, texts) in cloud_init::process_unchecked(&all).chunks(2).zip(&taken) {
        let [before, with] = outcomes else { unreachable!() };
        if let (false, Err(how)) = (is_dark(&texts[0], before), adds_the_block(before, with)) {
            wrong.push(format!("{how}\nfrom: {:?}\n", String::from_utf8_lossy(&texts[0])));
        }
    }
    assert!(wrong.is_empty(), "{} of {}:\n{}", wrong.len(), taken.len(), wrong.join("\n"));
}

/// Whether a report cannot be expected: cloud-init drops the text, or takes it for a message and corrupts its non-ASCII
/// characters.
fn is_dark(text: &[u8], before: &Value) -> bool {
    let text = String::from_utf8_lossy(text).trim_start().to_ascii_lowercase();
    let is_nothing = before["config"].as_object().is_none_or(serde_json::Map::is_empty) && before["parts"] == json!([]);
    is_nothing || text.starts_with('#') && text.contains("mime-version:") && !text.is_ascii()
}

#[test]
fn vendor_data_of_every_sort_keeps_its_meaning_and_has_the_server_trusted() {
    let ca = "-----BEGIN CERTIFICATE-----\nMIIB\n-----END CERTIFICATE-----\n";
    let script = trusting("", ca).unwrap().replacen("#cloud-boothook\n", "", 1);
    let cases: Vec<Case> = cases().into_iter().filter(|case| std::str::from_utf8(&case.user_data).is_ok()).collect();
    let mut all: Vec<Vec<u8>> = Vec::new();
    for Case { name, user_data, .. } in &cases {
        let text = std::str::from_utf8(user_data).unwrap();
        let trusting = trusting(text, ca).unwrap_or_else(|refusal| panic!("{name}: {refusal}"));
        all.extend([user_data.clone(), trusting.into_bytes()]);
    }
    let all: Vec<&[u8]> = all.iter().map(|bytes| &bytes[..]).collect();
    for (case, outcomes) in cases.iter().zip(cloud_init::process(&all).chunks(2)) {
        let [before, with] = outcomes else { unreachable!() };
        let config = |outcome: &Value| outcome["config"].as_object().cloned().unwrap_or_default();
        assert_eq!(config(with), config(before), "{}", case.name);
        let mut parts = with["parts"].as_array().cloned().unwrap_or_default();
        let ours = parts.pop().unwrap_or_default();
        assert_eq!(Value::from(parts), before["parts"], "{}", case.name);
        assert_eq!(ours[0], "text/cloud-boothook", "{}", case.name);
        let payload = ours[2].as_str().unwrap_or_default();
        assert_eq!(payload.trim_start_matches("#cloud-boothook\n").trim_end(), script.trim_end(), "{}", case.name);
    }
}

#[test]
fn what_is_refused_means_nothing_to_cloud_init() {
    let refused = refused();
    for (user_data, at, reason) in &refused {
        let judged = check(user_data);
        let refusal = inject(user_data, &block()).expect_err(&format!("{:?}", String::from_utf8_lossy(user_data)));
        assert_eq!(judged.as_ref(), Err(&refusal), "the judgement is the same without a block");
        let found = format!("{}:{}: {}", refusal.line, refusal.column, refusal.reason);
        assert!(found.starts_with(at) && found.contains(reason), "{found:?} is not {at:?} and {reason:?}");
        assert_eq!(remove(user_data, URL).as_ref(), Ok(user_data), "what is refused is not changed");
    }
    let user_data: Vec<&[u8]> = refused.iter().map(|(user_data, ..)| &user_data[..]).collect();
    for (outcome, user_data) in cloud_init::process(&user_data).iter().zip(&user_data) {
        let is_nothing = outcome["config"].as_object().is_none_or(serde_json::Map::is_empty);
        assert!(is_nothing && outcome["parts"] == json!([]), "{:?}: {outcome}", String::from_utf8_lossy(user_data));
    }
}
