//! One turn of a conversation.

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

/// One turn, as chat templates take it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Message {
    /// `system`, `user`, `assistant`, `tool`, …
    pub role: String,
    /// Text; empty where a turn holds only tool calls.
    #[serde(default)]
    pub content: String,
    /// Further keys that templates may use (`tool_calls`, `name`, `tool_call_id`, `reasoning_content`), as in the file.
    #[serde(flatten)]
    pub extra: Map<String, Value>,
}

impl Message {
    /// A turn with text only.
    pub fn new(role: impl Into<String>, content: impl Into<String>) -> Self {
        Self { role: role.into(), content: content.into(), extra: Map::new() }
    }

    /// True for turns the model has to produce.
    pub fn is_assistant(&self) -> bool {
        self.role == "assistant"
    }

    /// True for an assistant turn that is learned: not marked with `"weight": 0`, as OpenAI's format allows.
    pub(crate) fn is_learned(&self) -> bool {
        self.is_assistant() && self.extra.get("weight").and_then(Value::as_f64) != Some(0.0)
    }

    /// True where the turn says something without text: tool calls or reasoning.
    pub(crate) fn has_more_than_text(&self) -> bool {
        let present = |value: &Value| match value {
            Value::Null => false,
            Value::Array(items) => !items.is_empty(),
            Value::String(text) => !text.trim().is_empty(),
            _ => true,
        };
        ["tool_calls", "reasoning_content", "thinking"].iter().any(|key| self.extra.get(*key).is_some_and(present))
    }
}
