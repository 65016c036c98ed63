//! The page that shows a snapshot: a template with the JSON put in. It asks the network for nothing.

use crate::report::snapshot::{json, model::Snapshot};

/// The page, with a name between at signs for each part of it.
const HTML: &str = include_str!("../viewer/viewer.html");

/// The parts, in the order in which the page has them.
const PARTS: [(&str, &str); 14] = [
    ("@viewer.css@", include_str!("../viewer/viewer.css")),
    ("@format.js@", include_str!("../viewer/format.js")),
    ("@snapshot.js@", include_str!("../viewer/snapshot.js")),
    ("@model.js@", include_str!("../viewer/model.js")),
    ("@series.js@", include_str!("../viewer/series.js")),
    ("@map.js@", include_str!("../viewer/map.js")),
    ("@paint.js@", include_str!("../viewer/paint.js")),
    ("@timeline.js@", include_str!("../viewer/timeline.js")),
    ("@panels.js@", include_str!("../viewer/panels.js")),
    ("@table.js@", include_str!("../viewer/table.js")),
    ("@flame.js@", include_str!("../viewer/flame.js")),
    ("@compare.js@", include_str!("../viewer/compare.js")),
    ("@main.js@", include_str!("../viewer/main.js")),
    ("@controls.js@", include_str!("../viewer/controls.js")),
];

/// Where the JSON goes; once in the template.
const MARKER: &str = "@@SNAPSHOT@@";

/// The page, in UTF-8.
pub(super) fn encode(snapshot: &Snapshot) -> Vec<u8> {
    fill(&template(), &json::encode(snapshot))
}

/// The page that shows the snapshot in `json`.
pub(super) fn page(json: &str) -> String {
    // Both are UTF-8, and so are their parts.
    String::from_utf8(fill(&template(), json.as_bytes())).unwrap_or_default()
}

/// The page with its parts, and [`MARKER`] where the JSON goes.
fn template() -> String {
    let (mut page, mut rest) = (String::new(), HTML);
    for (name, part) in PARTS {
        if let Some((before, after)) = rest.split_once(name) {
            page += before;
            page += part;
            rest = after;
        }
    }
    page + rest
}

/// The template with the JSON in it. In JSON `<` stands in texts alone, where `\u003c` means the same: so no name can
/// end the script that holds it.
fn fill(template: &str, json: &[u8]) -> Vec<u8> {
    let (before, after) = template.split_once(MARKER).unwrap_or((template, ""));
    let mut page = Vec::with_capacity(template.len() + json.len());
    page.extend_from_slice(before.as_bytes());
    for (number, part) in json.split(|&byte| byte == b'<').enumerate() {
        if number > 0 {
            page.extend_from_slice(b"\\u003c");
        }
        page.extend_from_slice(part);
    }
    page.extend_from_slice(after.as_bytes());
    page
}

#[cfg(test)]
mod tests {
    use super::{super::testing, *};

    #[test]
    fn the_page_has_every_part_once_and_one_place_for_the_json() {
        let places: Vec<usize> = PARTS.iter().map(|(name, _)| HTML.find(name).expect(name)).collect();
        assert!(places.is_sorted());
        assert!(PARTS.iter().all(|(name, _)| HTML.matches(name).count() == 1));
        let page = template();
        assert!(PARTS.iter().all(|(name, part)| !page.contains(name) && page.contains(part)));
        assert!(!page.contains(".js@") && !page.contains(".css@"));
        assert_eq!(page.matches(MARKER).count(), 1);
    }

    #[test]
    fn a_stored_snapshot_makes_the_page_of_the_live_one() {
        let snapshot = testing::snapshot();
        let stored = String::from_utf8(json::encode(&snapshot)).expect("UTF-8");
        assert_eq!(page(&stored).into_bytes(), encode(&snapshot));
    }

    #[test]
    fn no_name_ends_the_script() {
        let mut snapshot = testing::snapshot();
        snapshot.command = "</script><!--<script>alert(1)".to_owned();
        let page = String::from_utf8(fill("<a>@@SNAPSHOT@@</a>", &json::encode(&snapshot))).expect("UTF-8");
        let inside = page.strip_prefix("<a>").and_then(|rest| rest.strip_suffix("</a>")).expect("the template");
        assert!(!inside.contains('<') && inside.contains("\\u003c/script>"));
        let value: serde_json::Value = serde_json::from_str(inside).expect("JSON still");
        assert_eq!(value["command"], snapshot.command.as_str());
    }
}
