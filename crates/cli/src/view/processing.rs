//! Declarations of pictures, texts, classes and embeddings as text.

use packhorse_api::ModelView;
use packhorse_cluster::{
    Embedding, ImagePreprocess, Pool, Postprocess, Preprocess, Resize, TextPreprocess,
};

/// Returns what is declared of inputs and outputs, in words: a heading and a text each.
pub(super) fn processing_rows(model: &ModelView) -> Vec<(&'static str, String)> {
    let inputs = model
        .preprocess
        .iter()
        .map(|(name, declared)| match declared {
            Preprocess::Image(image) => ("pictures", format!("{name}: {}", picture_text(image))),
            Preprocess::Text(text) => ("texts", format!("{name}: {}", text_text(text))),
        });
    let outputs = model
        .postprocess
        .iter()
        .map(|(name, declared)| match declared {
            Postprocess::Classes(classes) => {
                let softmax = if classes.softmax { ", softmax" } else { "" };
                let (top_k, labels) = (classes.top_k, classes.labels.len());
                let text = format!("{name}: the best {top_k} of each row{softmax}, {labels} names");
                ("classes", text)
            }
            Postprocess::Embedding(embedding) => (
                "embedding",
                format!("{name}: {}", embedding_text(*embedding)),
            ),
        });
    inputs.chain(outputs).collect()
}

fn picture_text(image: &ImagePreprocess) -> String {
    let resize = match image.resize {
        Resize::Shortest(side) => format!("shorter side {side}"),
        Resize::Exact([height, width]) => format!("{height} x {width}"),
    };
    let [height, width] = image.size();
    format!("JPEG, PNG or WebP, resized to {resize}, cropped to {height} x {width}")
}

fn text_text(text: &TextPreprocess) -> String {
    let inputs: Vec<&str> = text.inputs.keys().map(String::as_str).collect();
    let longer = if text.truncate { "cut" } else { "refused" };
    format!(
        "at most {} tokens, longer ones are {longer}; they become {}; tokenizer {}",
        text.max_length,
        inputs.join(", "),
        text.tokenizer
    )
}

fn embedding_text(embedding: Embedding) -> String {
    let pool = match embedding.pool {
        None => "each row",
        Some(Pool::Mean) => "the mean of a row's tokens",
        Some(Pool::Cls) => "the first token of each row",
        Some(Pool::Last) => "the last token of each row",
    };
    let normalize = if embedding.normalize {
        ", of length one"
    } else {
        ""
    };
    format!("{pool}{normalize}")
}
