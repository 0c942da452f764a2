//! Workflows as operators write them.

use serde::Deserialize;
use serde_saphyr::Spanned;
use slipway_protocol::ErrorCode;

use super::yaml;
use crate::base::error::Error;
use crate::run::new_run::WorkflowFile;

/// Reads a workflow file. Errors name line and column in the file.
pub fn parse_workflow(text: &str) -> Result<WorkflowFile, Error> {
    yaml::read(text).map_err(|reason| {
        let reason = action_without_inputs(text).unwrap_or(reason);
        Error::refused(ErrorCode::InvalidRequest, format!("the workflow is not valid: {reason}"))
    })
}

/// Returns the problem of the first action that is only a name, for which the parser's error says only "mapping".
fn action_without_inputs(yaml: &str) -> Option<String> {
    #[derive(Deserialize)]
    struct File {
        steps: Vec<Step>,
    }
    #[derive(Deserialize)]
    struct Step {
        action: Spanned<serde_json::Value>,
    }
    let file: File = serde_saphyr::from_str(yaml).ok()?;
    file.steps.iter().find_map(|Step { action }| {
        let (name, place) = (action.value.as_str()?, action.referenced);
        let advice =
            format!("write \"{name}: {{}}\" on the line below \"action:\", with its inputs, if any, in place of {{}},");
        Some(format!("the action {name:?} stands alone: {advice} at line {}, column {}", place.line(), place.column()))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hints_are_written_as_yaml_has_them() {
        let read = |hints: &str| {
            parse_workflow(&format!("steps:\n- name: wipe\n  action:\n    erase-disk:\n      disk: {{{hints}}}\n"))
        };
        let found = read("size: 120, rotational: false, serial: 0012, model: <in> fast, skip: [{size: \">= 400\"}]");
        let json = serde_json::to_value(&found.expect("hints").steps).expect("JSON");
        let hints = serde_json::json!({
            "size": "120", "rotational": false, "serial": "0012", "model": "<in> fast", "skip": [{"size": ">= 400"}],
        });
        assert_eq!(json[0]["action"]["erase-disk"]["disk"], hints);
        for (hints, part) in [
            ("size: \"=> 1\"", "which is not an operator here"),
            ("serial: \">= 1\"", "which is not an operator here"),
            ("size: big", "where a number of whole GiB is needed"),
            ("size: 1.5", "whole GiB"),
            ("rotational: maybe", "true or false"),
        ] {
            let error = read(hints).expect_err(hints).to_string();
            assert!(error.contains(part) && error.contains("line 5"), "{error}");
        }
    }

    #[test]
    fn a_workflow_error_names_its_place() {
        let yaml = "steps:\n  - name: go\n    action:\n      reboot: {}\n    retrys: 2\n";
        let error = parse_workflow(yaml).expect_err("retrys is no key").to_string();
        assert!(error.starts_with("the workflow is not valid: unknown field `retrys`"), "{error}");
        assert!(error.ends_with(" at line 5, column 5"), "{error}");
        assert_eq!(error.lines().count(), 1, "{error}");

        for (yaml, expect) in [
            ("steps: []\nsteps: []\n", "the key \"steps\" is given twice at line 2, column 1"),
            ("steps: []\n---\nsteps: []\n", "only one document is read, but a second one begins at line 3, column 1"),
            ("steps: go\n", "a list is needed here, such as [a, b] at line 1, column 8"),
            ("steps: [go]\n", "a mapping is needed here, such as {key: value} at line 1, column 9"),
            ("steps: [{name: go, action: [reboot]}]\n", "a name and its inputs are needed here, such as {reboot: {}}"),
            ("steps: [{name: go, action: {reboot: {}, kexec: {}}}]\n", "only one name is allowed here"),
            ("steps: [{name: go, action: {reboot: {force: true}}}]\n", "unknown field `force`: there are none here"),
            ("steps: [{name: go, action: {reboot: {}}, retries: many}]\n", "a whole number is needed here"),
            ("steps: []\nphone_home: maybe\n", "true or false is needed here at line 2, column 13"),
            ("", "nothing is given"),
        ] {
            let error = parse_workflow(yaml).expect_err(yaml).to_string();
            assert!(error.starts_with(&format!("the workflow is not valid: {expect}")), "{yaml:?}: {error}");
        }

        let error = parse_workflow("steps:\n- name: go\n  action: reboot\n").expect_err("no inputs").to_string();
        assert!(error.contains("write \"reboot: {}\" on the line below"), "{error}");
        assert!(error.ends_with(" at line 3, column 11"), "{error}");

        let yaml = "steps:\n  - name: go\n    action:\n      reboot: {}\n";
        let workflow = parse_workflow(yaml).expect("valid");
        assert_eq!(workflow.steps[0].action.name(), "reboot");
    }
}
