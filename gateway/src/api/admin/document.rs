//! The parts of the OpenAPI document that say more of parameters and bodies than their Rust types: the rules of names, digests and versions.

use utoipa::{
    Number,
    openapi::{
        Content, KnownFormat, Object, OpenApi, PathItem, Ref, RefOr, Schema, SchemaFormat, Type,
        path::{Operation, Parameter},
    },
};

/// The rule of the names of models, nodes and kinds of device.
const NAME: &str = "^[A-Za-z0-9][A-Za-z0-9._-]{0,127}$";
/// The rule of digests.
const DIGEST: &str = "^sha256:[0-9a-f]{64}$";
/// The route whose answers all routes of inference have.
const INFER: &str = "/v2/models/{model}/infer";

/// The kinds of things that a field beside their own ones tells apart.
const TAGGED: [&str; 2] = ["ImagePreprocess", "TextPreprocess"];

/// Adds the rules of parameters and bodies to the document.
pub(super) fn tighten(document: &mut OpenApi) {
    allow_tags(document);
    let infer = document.paths.paths.get(INFER);
    let infer = infer.and_then(|item| item.post.as_ref());
    let infer = infer
        .expect("there is a route for inference")
        .responses
        .clone();
    for (path, item) in &mut document.paths.paths {
        for operation in operations(item) {
            let parameters = operation.parameters.iter_mut().flatten();
            for parameter in parameters.filter_map(present) {
                tighten_parameter(parameter);
            }
            if path.ends_with("/infer") {
                operation.responses = infer.clone();
            } else if path.starts_with("/v2/models/{model}") {
                let mut malformed = infer.responses["400"].clone();
                if let Some(malformed) = present(&mut malformed) {
                    "No name of a model, or no version".clone_into(&mut malformed.description);
                }
                let responses = &mut operation.responses.responses;
                responses.insert("400".to_owned(), malformed);
            }
            if path.ends_with("/infer") || path.ends_with("/try") {
                set_body(
                    operation,
                    Schema::Object(Object::with_type(Type::Object)).into(),
                );
            } else if path == "/v2/repository/index" {
                set_body(
                    operation,
                    Ref::from_schema_name("RepositoryIndexRequest").into(),
                );
            }
        }
    }
}

/// Allows the field that tells kinds apart beside those of a kind, whose own schema forbids it. The server refuses what is unknown.
fn allow_tags(document: &mut OpenApi) {
    let components = document.components.get_or_insert_default();
    for name in TAGGED {
        let schema = components.schemas.get_mut(name).and_then(present);
        if let Some(Schema::Object(kind)) = schema {
            kind.additional_properties = None;
        }
    }
}

fn operations(item: &mut PathItem) -> impl Iterator<Item = &mut Operation> {
    let methods = [
        &mut item.get,
        &mut item.put,
        &mut item.post,
        &mut item.patch,
        &mut item.delete,
    ];
    methods.into_iter().flatten()
}

/// Returns what is there itself and not by reference.
fn present<T>(part: &mut RefOr<T>) -> Option<&mut T> {
    match part {
        RefOr::T(part) => Some(part),
        RefOr::Ref(_) => None,
    }
}

fn set_body(operation: &mut Operation, schema: RefOr<Schema>) {
    let body = operation.request_body.as_mut().and_then(present);
    let content = body.and_then(|body| body.content.get_mut("application/json"));
    let content: Option<&mut Content> = content.and_then(present);
    if let Some(content) = content {
        content.schema = Some(schema);
    }
}

fn tighten_parameter(parameter: &mut Parameter) {
    let schema = parameter.schema.as_mut().and_then(present);
    let Some(Schema::Object(schema)) = schema else {
        return;
    };
    match parameter.name.as_str() {
        "name" | "model" | "node" | "device_kind" => schema.pattern = Some(NAME.to_owned()),
        "digest" => schema.pattern = Some(DIGEST.to_owned()),
        "version" => schema.minimum = Some(Number::Int(1)),
        _ => {}
    }
    let is_long = schema.format == Some(SchemaFormat::KnownFormat(KnownFormat::Int64));
    if is_long && schema.maximum.is_none() {
        schema.maximum = Some(Number::Int(isize::MAX));
    }
}
