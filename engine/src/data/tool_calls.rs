//! Tool calls in the one form templates expect: a list of functions whose arguments are an object.

use serde_json::{Map, Value, json};

/// Brings a turn's `tool_calls` (or the older `function_call`) into the templates' form. Arguments given as a JSON
/// string are parsed, so that they are not escaped twice. The error says which call, by function and id.
pub(crate) fn normalise(extra: &mut Map<String, Value>) -> Result<(), String> {
    if let Some(call) = extra.shift_remove("function_call")
        && !call.is_null()
        && !extra.contains_key("tool_calls")
    {
        extra.insert("tool_calls".into(), json!([{"type": "function", "function": call}]));
    }
    // Null and empty lists say nothing, and some templates only ask whether the key is there.
    let says_nothing = |value: &Value| value.is_null() || value.as_array().is_some_and(Vec::is_empty);
    if extra.get("tool_calls").is_some_and(says_nothing) {
        extra.shift_remove("tool_calls");
    }
    let Some(calls) = extra.get_mut("tool_calls") else { return Ok(()) };
    if let Value::String(text) = calls {
        *calls = serde_json::from_str(text).map_err(|error| format!("tool_calls is text that is not JSON: {error}"))?;
    }
    let calls = calls.as_array_mut().ok_or("tool_calls is not a list")?;
    for call in calls {
        let id = call.get("id").and_then(Value::as_str).unwrap_or("none").to_string();
        let function = match call.get_mut("function") {
            Some(function) => function,
            None => call,
        };
        let name = function.get("name").and_then(Value::as_str).unwrap_or("unnamed").to_string();
        let Some(arguments) = function.get_mut("arguments") else { continue };
        let Value::String(text) = arguments else { continue };
        if text.trim().is_empty() {
            *arguments = json!({});
            continue;
        }
        *arguments = serde_json::from_str(text).map_err(|error| {
            format!("the arguments of the call to {name} (id {id}) are not valid JSON: {error} in {text:?}")
        })?;
    }
    Ok(())
}

/// A row's `tools` or older `functions`: a list, or a JSON string of one.
pub(crate) fn descriptions(row: &Map<String, Value>) -> Result<Option<Value>, String> {
    let parse = |value: &Value| -> Result<Option<Value>, String> {
        let value = match value {
            Value::String(text) if text.trim().is_empty() => return Ok(None),
            Value::String(text) => {
                serde_json::from_str(text).map_err(|error| format!("the tools are text that is not JSON: {error}"))?
            }
            other => other.clone(),
        };
        match value {
            Value::Null => Ok(None),
            Value::Array(list) if list.is_empty() => Ok(None),
            Value::Array(list) => Ok(Some(Value::Array(list))),
            _ => Err("the tools are not a list".into()),
        }
    };
    if let Some(tools) = row.get("tools") {
        return parse(tools);
    }
    let Some(functions) = row.get("functions") else { return Ok(None) };
    Ok(parse(functions)?.map(|list| {
        let wrap = |function: &Value| json!({"type": "function", "function": function});
        Value::Array(list.as_array().map(|list| list.iter().map(wrap).collect()).unwrap_or_default())
    }))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn extra(value: Value) -> Map<String, Value> {
        value.as_object().unwrap().clone()
    }

    #[test]
    fn string_arguments_become_objects_with_their_types() {
        let mut turn = extra(json!({"tool_calls": [
            {"id": "c1", "function": {"name": "open", "arguments": "{\"time\": 1690876800, \"day\": \"2025-08-01\"}"}},
            {"id": "c2", "function": {"name": "shut", "arguments": {"a": 1}}}]}));
        normalise(&mut turn).unwrap();
        assert_eq!(turn["tool_calls"][0]["function"]["arguments"], json!({"time": 1690876800, "day": "2025-08-01"}));
        assert_eq!(turn["tool_calls"][1]["function"]["arguments"], json!({"a": 1}));
    }

    #[test]
    fn broken_arguments_name_function_and_call() {
        let mut turn =
            extra(json!({"tool_calls": [{"id": "c5", "function": {"name": "rain", "arguments": "{\"a\""}}]}));
        let reason = normalise(&mut turn).unwrap_err();
        assert!(reason.contains("rain") && reason.contains("c5"), "{reason}");
    }

    #[test]
    fn the_older_forms_are_understood_and_empty_ones_vanish() {
        let mut turn = extra(json!({"function_call": {"name": "f", "arguments": "{}"}}));
        normalise(&mut turn).unwrap();
        assert_eq!(turn["tool_calls"][0]["function"]["name"], "f");
        let mut turn = extra(json!({"function_call": null, "tool_calls": []}));
        normalise(&mut turn).unwrap();
        assert!(turn.is_empty());
        let row = extra(json!({"functions": [{"name": "f"}]}));
        assert_eq!(descriptions(&row).unwrap(), Some(json!([{"type": "function", "function": {"name": "f"}}])));
    }
}
