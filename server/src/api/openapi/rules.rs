//! Adds rules that hold for every operation and so are not repeated at each one: a key that is present has a value, and
//! any request may meet a server that is stopping.

use std::collections::BTreeSet;

use serde_json::{Map, Value, json};
use slipway_protocol::shared::given;

use crate::base::time::{DATED, is_time};

const METHODS: [&str; 5] = ["get", "post", "put", "patch", "delete"];

/// Applies the rules to the document.
pub fn apply(document: &mut Value) {
    forbid_null(document);
    close_variants(document);
    let changes = given_in(document, &["patch"], false);
    for name in given_in(document, &METHODS, true) {
        if let Some(schema) = document.pointer_mut(&format!("/components/schemas/{name}")) {
            bound(schema);
            if !changes.contains(&name) {
                forbid_empty(schema);
            }
        }
    }
    let answers = answered(document);
    for name in answers {
        document.pointer_mut(&format!("/components/schemas/{name}")).into_iter().for_each(add_dates);
    }
    let Some(paths) = document["paths"].as_object_mut() else { return };
    for (path, item) in paths {
        for method in METHODS {
            let Some(operation) = item.get_mut(method).and_then(Value::as_object_mut) else { continue };
            let parameters = operation.get_mut("parameters").into_iter();
            if path.starts_with("/v1/operator/") {
                parameters.for_each(bound);
            } else {
                parameters.for_each(bound_numbers);
            }
            add_statuses(operation);
        }
    }
}

/// Makes optional fields absent rather than `null`.
fn forbid_null(value: &mut Value) {
    match value {
        Value::Array(items) => items.iter_mut().for_each(forbid_null),
        Value::Object(fields) => {
            fields.values_mut().for_each(forbid_null);
            fields.retain(|key, value| key != "default" || !value.is_null());
            if let Some(Value::Array(types)) = fields.get_mut("type") {
                types.retain(|name| name != "null");
                if let [only] = types.as_slice() {
                    let only = only.clone();
                    fields.insert("type".to_owned(), only);
                }
            }
            if let Some(Value::Array(choices)) = fields.get_mut("oneOf") {
                choices.retain(|choice| choice.get("type") != Some(&json!("null")));
                if let [Value::Object(only)] = choices.as_slice() {
                    let only = only.clone();
                    fields.remove("oneOf");
                    fields.extend(only);
                }
            }
        }
        _ => {}
    }
}

/// Forbids further keys in enum values with content: each is an object with one key, the variant's name.
fn close_variants(value: &mut Value) {
    match value {
        Value::Array(items) => items.iter_mut().for_each(close_variants),
        Value::Object(fields) => {
            fields.values_mut().for_each(close_variants);
            for choice in fields.get_mut("oneOf").and_then(Value::as_array_mut).into_iter().flatten() {
                let is_variant = choice["properties"].as_object().is_some_and(|properties| properties.len() == 1);
                if let Some(choice) = choice.as_object_mut().filter(|_| is_variant) {
                    choice.insert("additionalProperties".to_owned(), json!(false));
                }
            }
        }
        _ => {}
    }
}

/// Returns the names of the request schemas of operators and external steps for these methods. With `all`, includes the
/// schemas that those refer to.
fn given_in(document: &Value, methods: &[&str], all: bool) -> BTreeSet<String> {
    let mut found = BTreeSet::new();
    let paths = document["paths"].as_object().into_iter().flatten();
    for (_, item) in paths.filter(|(path, _)| path.starts_with("/v1/operator/") || *path == "/v1/report") {
        let bodies = methods.iter().filter_map(|method| item.get(method)?.get("requestBody"));
        bodies.for_each(|body| add_references(document, body, all, &mut found));
    }
    found
}

/// Returns the names of the schemas in answers to operators.
fn answered(document: &Value) -> BTreeSet<String> {
    let mut found = BTreeSet::new();
    let paths = document["paths"].as_object().into_iter().flatten();
    for (_, item) in paths.filter(|(path, _)| path.starts_with("/v1/operator/") || *path == "/readyz") {
        let answers = METHODS.iter().filter_map(|method| item.get(method)?.get("responses"));
        answers.for_each(|answer| add_references(document, answer, true, &mut found));
    }
    found
}

/// Adds a field with the time in RFC 3339 next to each time in milliseconds.
fn add_dates(schema: &mut Value) {
    match schema {
        Value::Array(items) => items.iter_mut().for_each(add_dates),
        Value::Object(fields) => {
            fields.values_mut().for_each(add_dates);
            let Some(properties) = fields.get_mut("properties").and_then(Value::as_object_mut) else { return };
            let is_time = |(key, field): &(&String, &Value)| is_time(key) && field["type"] == "integer";
            let dates: Vec<String> = properties.iter().filter(is_time).map(|(key, _)| key.clone()).collect();
            let date = |key: &String| {
                let said = format!("`{key}` in RFC 3339.");
                (format!("{key}{DATED}"), json!({ "type": "string", "format": "date-time", "description": said }))
            };
            properties.extend(dates.iter().map(date));
        }
        _ => {}
    }
}

fn add_references(document: &Value, value: &Value, all: bool, found: &mut BTreeSet<String>) {
    match value {
        Value::Array(items) => items.iter().for_each(|item| add_references(document, item, all, found)),
        Value::Object(fields) => {
            let reference = fields.get("$ref").and_then(Value::as_str);
            if let Some(name) = reference.and_then(|reference| reference.strip_prefix("#/components/schemas/"))
                && found.insert(name.to_owned())
                && all
            {
                add_references(document, &document["components"]["schemas"][name], all, found);
            }
            fields.values().for_each(|field| add_references(document, field, all, found));
        }
        _ => {}
    }
}

/// Requires that lists and mappings that select something are not empty.
fn forbid_empty(schema: &mut Value) {
    let properties = schema.get_mut("properties").and_then(Value::as_object_mut).into_iter().flatten();
    for (_, property) in properties.filter(|(key, _)| given::selects(key)) {
        let least = if property["type"] == "array" { "minItems" } else { "minProperties" };
        if let Some(property) = property.as_object_mut() {
            property.insert(least.to_owned(), json!(1));
            if let Some(items) = property.get_mut("items").and_then(Value::as_object_mut) {
                items.insert("minProperties".to_owned(), json!(1));
                // Hints that exclude disks cannot name a disk or choose one (`DiskHints::validate`).
                let chooses = ["device", "choose", "skip"].map(|key| json!({ "required": [key] }));
                items.insert("not".to_owned(), json!({ "anyOf": chooses }));
            }
        }
    }
}

/// Requires that texts are not blank, unless their key permits it, and that numbers are in the accepted range.
fn bound(schema: &mut Value) {
    match schema {
        Value::Array(items) => items.iter_mut().for_each(bound),
        Value::Object(fields) => {
            let is_open = ["pattern", "enum", "const", "format"].iter().all(|key| !fields.contains_key(*key));
            if fields.get("type") == Some(&json!("string")) && is_open {
                fields.insert("pattern".to_owned(), json!(given::VISIBLE));
            }
            bound_number(fields);
            let below = fields.iter_mut().filter(|(key, _)| !given::may_be_blank(key));
            below.for_each(|(_, field)| bound(field));
        }
        _ => {}
    }
}

fn bound_numbers(schema: &mut Value) {
    match schema {
        Value::Array(items) => items.iter_mut().for_each(bound_numbers),
        Value::Object(fields) => {
            bound_number(fields);
            fields.values_mut().for_each(bound_numbers);
        }
        _ => {}
    }
}

fn bound_number(fields: &mut Map<String, Value>) {
    if fields.get("format") == Some(&json!("int64")) {
        fields.entry("maximum").or_insert(json!(given::LARGEST));
    }
}

/// Adds the answers that are possible for every request.
fn add_statuses(operation: &mut Map<String, Value>) {
    let (has_body, has_parameters) = (operation.contains_key("requestBody"), operation.contains_key("parameters"));
    let of_node = operation.get("security").is_some_and(|security| security.to_string().contains("\"node\""));
    let Some(responses) = operation.get_mut("responses").and_then(Value::as_object_mut) else { return };
    let content = json!({ "application/json": { "schema": { "$ref": "#/components/schemas/ErrorBody" } } });
    let mut add = |status: &str, description: &str| {
        let response = json!({ "description": description, "content": content });
        responses.entry(status).or_insert(response);
    };
    if has_body || has_parameters {
        add("400", "The request cannot be read, or makes no sense.");
    }
    if has_body {
        add("413", "The body is larger than the server reads.");
    }
    if of_node {
        add("401", "The caller is not a node, or has another key now.");
        add("410", "An operator took the node out of service.");
    }
    add("429", "The client, or all at its address, ask too often. Try again later.");
    add("500", "The server has a fault.");
    add("503", "The server is stopping or overloaded. Try again.");
}
