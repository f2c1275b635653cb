//! The parameters of queries: one that a route does not take is refused, with those that it takes. A misspelt filter would be answered with everything.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
};

use axum::{
    extract::{MatchedPath, Query, Request, State},
    http::Method,
    middleware::Next,
    response::{IntoResponse as _, Response},
};
use utoipa::openapi::{OpenApi, RefOr, path::ParameterIn};

use crate::{api::error::ApiError, printable::printable};

/// The names of the parameters that each route takes, by its method and path.
#[derive(Clone, Debug)]
pub(super) struct KnownParameters(Arc<BTreeMap<(Method, String), BTreeSet<String>>>);

impl KnownParameters {
    /// Reads them from the document of the routes.
    pub(super) fn new(document: &OpenApi) -> Self {
        let mut known = BTreeMap::new();
        for (path, item) in &document.paths.paths {
            let operations = [
                (Method::GET, &item.get),
                (Method::PUT, &item.put),
                (Method::POST, &item.post),
                (Method::PATCH, &item.patch),
                (Method::DELETE, &item.delete),
            ];
            for (method, operation) in operations {
                let Some(operation) = operation else {
                    continue;
                };
                let parameters = operation.parameters.iter().flatten();
                let here = parameters.filter_map(|parameter| match parameter {
                    RefOr::T(parameter) => Some(parameter),
                    RefOr::Ref(_) => None,
                });
                let of_query = here.filter(|of| of.parameter_in == ParameterIn::Query);
                let names = of_query.map(|parameter| parameter.name.clone()).collect();
                known.insert((method, path.clone()), names);
            }
        }
        Self(Arc::new(known))
    }

    /// Returns an error for the first parameter of a request that its route does not take.
    fn check(&self, request: &Request, path: &str) -> Result<(), ApiError> {
        // The answer to HEAD is that to GET, without its body.
        let method = match *request.method() {
            Method::HEAD => Method::GET,
            ref method => method.clone(),
        };
        let Some(known) = self.0.get(&(method.clone(), path.to_owned())) else {
            return Ok(());
        };
        let given = Query::<Vec<(String, String)>>::try_from_uri(request.uri())
            .map_err(|e| ApiError::bad_request(e.body_text()))?;
        let unknown = given.iter().find(|(name, _)| !known.contains(name));
        let Some((name, _)) = unknown else {
            return Ok(());
        };
        let known: Vec<&str> = known.iter().map(String::as_str).collect();
        let takes = match &known[..] {
            [] => "no parameters".to_owned(),
            known => known.join(", "),
        };
        Err(ApiError::bad_request(format!(
            "query: there is no parameter `{}`: {method} {path} takes {takes}",
            printable(name)
        )))
    }
}

/// Middleware that refuses requests with parameters that their routes do not take.
pub(super) async fn known_only(
    State(known): State<KnownParameters>,
    request: Request,
    next: Next,
) -> Response {
    let path = request.extensions().get::<MatchedPath>();
    let checked = match (path, request.uri().query()) {
        (Some(path), Some(_)) => known.check(&request, path.as_str()),
        _ => Ok(()),
    };
    match checked {
        Ok(()) => next.run(request).await,
        Err(error) => error.into_response(),
    }
}
