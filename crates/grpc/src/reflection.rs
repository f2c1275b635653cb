//! The answers of the reflection service: which services there are, and the files that declare them.

use bytes::Bytes;
use prost::Message;

use crate::messages::reflection::{
    ErrorResponse, FileDescriptorResponse, ListServiceResponse, ServerReflectionRequest,
    ServerReflectionResponse, ServiceResponse, server_reflection_request::MessageRequest,
    server_reflection_response::MessageResponse,
};

/// The services that a server of this protocol has.
pub const SERVICES: [&str; 3] = [
    "grpc.health.v1.Health",
    "grpc.reflection.v1.ServerReflection",
    "inference.GRPCInferenceService",
];

/// The files of `proto`, as descriptors.
const DESCRIPTORS: &[u8] = include_bytes!("generated/descriptors.bin");

/// The status of what is not there.
const NOT_FOUND: i32 = 5;
/// The status of what is not offered.
const UNIMPLEMENTED: i32 = 12;

/// A set of files, each left as it is.
#[derive(Clone, PartialEq, Message)]
struct FileSet {
    #[prost(bytes = "bytes", repeated, tag = "1")]
    file: Vec<Bytes>,
}

/// The part of a file that names what it declares.
#[derive(Clone, PartialEq, Message)]
struct File {
    #[prost(string, tag = "1")]
    name: String,
    #[prost(string, tag = "2")]
    package: String,
    #[prost(message, repeated, tag = "4")]
    message_type: Vec<Declared>,
    #[prost(message, repeated, tag = "5")]
    enum_type: Vec<Declared>,
    #[prost(message, repeated, tag = "6")]
    service: Vec<Declared>,
}

/// A message, an enumeration or a service.
#[derive(Clone, PartialEq, Message)]
struct Declared {
    #[prost(string, tag = "1")]
    name: String,
}

/// Answers a question of the reflection service.
pub fn reflected(request: ServerReflectionRequest) -> ServerReflectionResponse {
    let response = match &request.message_request {
        Some(MessageRequest::ListServices(_)) => {
            let service = SERVICES.map(|name| ServiceResponse {
                name: name.to_owned(),
            });
            MessageResponse::ListServicesResponse(ListServiceResponse {
                service: service.to_vec(),
            })
        }
        Some(MessageRequest::FileByFilename(name)) => {
            let found = files().find(|(file, _)| file.name == *name);
            file_or_error(found, name)
        }
        Some(MessageRequest::FileContainingSymbol(symbol)) => {
            let found = files().find(|(file, _)| file.declares(symbol));
            file_or_error(found, symbol)
        }
        Some(
            MessageRequest::FileContainingExtension(_)
            | MessageRequest::AllExtensionNumbersOfType(_),
        )
        | None => error(UNIMPLEMENTED, "expected a file, a symbol, or list_services"),
    };
    ServerReflectionResponse {
        valid_host: request.host.clone(),
        original_request: Some(request),
        message_response: Some(response),
    }
}

/// Returns the files and their descriptors.
fn files() -> impl Iterator<Item = (File, Bytes)> {
    let set = FileSet::decode(DESCRIPTORS).unwrap_or_default();
    let parsed = |bytes: Bytes| Some((File::decode(bytes.clone()).ok()?, bytes));
    set.file.into_iter().filter_map(parsed)
}

impl File {
    /// Returns true if the file declares a symbol: a type, a service, or what is within one.
    fn declares(&self, symbol: &str) -> bool {
        let inner = symbol.strip_prefix(&self.package);
        let inner = inner.and_then(|inner| inner.strip_prefix('.'));
        let outermost = inner.and_then(|inner| inner.split('.').next());
        let all = self.message_type.iter().chain(&self.enum_type);
        let mut all = all.chain(&self.service);
        outermost.is_some_and(|name| all.any(|declared| declared.name == name))
    }
}

fn file_or_error(found: Option<(File, Bytes)>, name: &str) -> MessageResponse {
    let Some((_, descriptor)) = found else {
        let shown: String = name.chars().take(64).collect();
        return error(NOT_FOUND, &format!("there is no {shown:?}"));
    };
    MessageResponse::FileDescriptorResponse(FileDescriptorResponse {
        file_descriptor_proto: vec![descriptor],
    })
}

fn error(error_code: i32, message: &str) -> MessageResponse {
    MessageResponse::ErrorResponse(ErrorResponse {
        error_code,
        error_message: message.to_owned(),
    })
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    fn ask(request: MessageRequest) -> MessageResponse {
        let answer = reflected(ServerReflectionRequest {
            host: String::new(),
            message_request: Some(request),
        });
        answer.message_response.expect("every question is answered")
    }

    #[test]
    fn the_listed_services_are_those_that_the_files_declare() {
        let declared = files().flat_map(|(file, _)| {
            let package = file.package;
            let services = file.service.into_iter();
            services.map(move |service| format!("{package}.{}", service.name))
        });
        let declared: BTreeSet<String> = declared.collect();
        assert_eq!(declared, SERVICES.map(ToOwned::to_owned).into());
        for service in SERVICES {
            let symbol = MessageRequest::FileContainingSymbol(service.to_owned());
            let MessageResponse::FileDescriptorResponse(found) = ask(symbol) else {
                panic!("{service} is not declared");
            };
            assert_eq!(found.file_descriptor_proto.len(), 1);
        }
    }

    #[test]
    fn methods_nested_messages_and_files_are_found_and_others_are_not() {
        for symbol in [
            "inference.GRPCInferenceService.ModelInfer",
            "inference.ModelInferRequest.InferInputTensor",
            "inference.DataType",
        ] {
            let found = ask(MessageRequest::FileContainingSymbol(symbol.to_owned()));
            assert!(
                matches!(found, MessageResponse::FileDescriptorResponse(_)),
                "{symbol}"
            );
        }
        let file = ask(MessageRequest::FileByFilename("inference.proto".to_owned()));
        assert!(matches!(file, MessageResponse::FileDescriptorResponse(_)));
        for absent in [
            "inference",
            "inferenceX.DataType",
            "grpc.health.v1.DataType",
            "",
        ] {
            let found = ask(MessageRequest::FileContainingSymbol(absent.to_owned()));
            let MessageResponse::ErrorResponse(error) = found else {
                panic!("{absent} is declared");
            };
            assert_eq!(error.error_code, NOT_FOUND);
        }
    }
}
