//! The kinds of patches.

use serde_json::Value;

use crate::refusal::Refusal;

/// The object after a patch with this content type. A strategic merge patch is a merge patch: lists are replaced.
pub(crate) fn patched(old: &Value, content_type: &str, patch: &Value) -> Result<Value, Refusal> {
    let mut object = old.clone();
    match content_type {
        "application/json-patch+json" => {
            let invalid = |error: String| Refusal::new("BadRequest", format!("JSON patch: {error}"));
            let steps: json_patch::Patch =
                serde_json::from_value(patch.clone()).map_err(|error| invalid(error.to_string()))?;
            json_patch::patch(&mut object, &steps).map_err(|error| invalid(error.to_string()))?;
        }
        "application/merge-patch+json"
        | "application/strategic-merge-patch+json"
        | "application/apply-patch+yaml" => json_patch::merge(&mut object, patch),
        other => {
            let text = format!("the body of the request was in an unknown format: {other:?}");
            return Err(Refusal::new("UnsupportedMediaType", text));
        }
    }
    Ok(object)
}
