//! The platforms whose contracts the listener speaks.

use std::{fmt, str::FromStr};

use axum::http::{HeaderMap, StatusCode};
use packhorse_cluster::{ModelName, ModelVersion};

use crate::api::inference::error::InferenceError;

/// The header by which `SageMaker` names one of several models.
const TARGET_MODEL: &str = "x-amzn-sagemaker-target-model";
/// The path by which `SageMaker` asks whether a container is ready.
pub(super) const PING: &str = "/ping";
/// The path of `SageMaker`'s requests.
pub(super) const INVOCATIONS: &str = "/invocations";
/// The end of the path of a request of `KServe`, version 1.
pub(in crate::api::inference) const PREDICT: &str = ":predict";
/// The most characters of a route.
const MAX_ROUTE: usize = 256;

/// A platform, and the model that its requests are for where they name none.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Platform {
    /// `KServe`, version 1 of its protocol: the path names the model.
    KserveV1,
    /// `SageMaker`.
    SageMaker(String),
    /// Vertex AI.
    Vertex(String),
}

/// The text is no platform.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("expected kserve-v1, sagemaker=MODEL or vertex=MODEL, where MODEL is NAME or NAME:VERSION")]
pub struct InvalidPlatform;

impl FromStr for Platform {
    type Err = InvalidPlatform;

    fn from_str(text: &str) -> Result<Self, InvalidPlatform> {
        if text == "kserve-v1" {
            return Ok(Self::KserveV1);
        }
        let (platform, model) = text.split_once('=').ok_or(InvalidPlatform)?;
        let (name, version) = model.split_once(':').unwrap_or((model, "1"));
        let is_model = name.parse::<ModelName>().is_ok() && version.parse::<ModelVersion>().is_ok();
        match platform {
            "sagemaker" if is_model => Ok(Self::SageMaker(model.to_owned())),
            "vertex" if is_model => Ok(Self::Vertex(model.to_owned())),
            _ => Err(InvalidPlatform),
        }
    }
}

impl fmt::Display for Platform {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::KserveV1 => f.write_str("kserve-v1"),
            Self::SageMaker(model) => write!(f, "sagemaker={model}"),
            Self::Vertex(model) => write!(f, "vertex={model}"),
        }
    }
}

/// The paths that Vertex AI tells a container to answer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct VertexRoutes {
    /// The path by which it asks whether the container is ready.
    pub health: String,
    /// The path of its requests.
    pub predict: String,
}

impl Default for VertexRoutes {
    fn default() -> Self {
        Self {
            health: "/health".to_owned(),
            predict: "/predict".to_owned(),
        }
    }
}

/// The platforms contradict each other.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum PlatformsError {
    /// A platform has two models.
    #[error("--platform {0}: the platform is given twice")]
    Twice(Platform),
    /// A route of Vertex AI cannot be one.
    #[error(
        "{0:?}: a route of Vertex AI is a path such as /predict, without parameters, and not one of another platform"
    )]
    Route(String),
}

/// The platforms whose contracts the listener speaks: none, unless the operator turns them on.
#[derive(Clone, Debug, Default)]
pub struct Platforms {
    /// True if the paths of `KServe`, version 1, are answered.
    pub(in crate::api) kserve_v1: bool,
    /// The model of `SageMaker`'s requests.
    pub(super) sagemaker: Option<String>,
    /// The model of Vertex AI's requests, and their paths.
    pub(super) vertex: Option<(String, VertexRoutes)>,
}

/// The wish of a request by the contract of a platform.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::api) enum Asked<'a> {
    /// The readiness of the container, for which no key is needed.
    Health,
    /// The answer of a model.
    Model(&'a str),
}

impl Platforms {
    /// Creates the platforms of flags, of which Vertex AI's has these routes.
    ///
    /// # Errors
    /// A platform is there twice, or a route is none.
    pub fn new(given: &[Platform], routes: &VertexRoutes) -> Result<Self, PlatformsError> {
        let mut platforms = Self::default();
        for platform in given {
            let was_there = match platform {
                Platform::KserveV1 => std::mem::replace(&mut platforms.kserve_v1, true),
                Platform::SageMaker(model) => platforms.sagemaker.replace(model.clone()).is_some(),
                Platform::Vertex(model) => {
                    check_route(&routes.health)?;
                    check_route(&routes.predict)?;
                    let vertex = (model.clone(), routes.clone());
                    platforms.vertex.replace(vertex).is_some()
                }
            };
            if was_there {
                return Err(PlatformsError::Twice(platform.clone()));
            }
        }
        Ok(platforms)
    }

    /// Returns what a request asks for, if it is one of `SageMaker` or Vertex AI.
    pub(in crate::api) fn asked<'a>(
        &'a self,
        path: &str,
        headers: &'a HeaderMap,
    ) -> Result<Option<Asked<'a>>, InferenceError> {
        if let Some((model, routes)) = &self.vertex {
            if path == routes.health {
                return Ok(Some(Asked::Health));
            }
            if path == routes.predict {
                return Ok(Some(Asked::Model(model)));
            }
        }
        match &self.sagemaker {
            Some(_) if path == PING => Ok(Some(Asked::Health)),
            Some(model) if path == INVOCATIONS => Ok(Some(Asked::Model(target(model, headers)?))),
            _ => Ok(None),
        }
    }
}

/// Returns the model of a request of `SageMaker`: that of its header, or else the given one.
pub(super) fn target<'a>(
    model: &'a str,
    headers: &'a HeaderMap,
) -> Result<&'a str, InferenceError> {
    let Some(named) = headers.get(TARGET_MODEL) else {
        return Ok(model);
    };
    let named = named.to_str().ok().filter(|named| !named.is_empty());
    let message = "X-Amzn-SageMaker-Target-Model: expected the name of a model";
    named.ok_or_else(|| InferenceError::new(StatusCode::BAD_REQUEST, message))
}

/// Checks that a route is a path that the router takes as it is.
fn check_route(route: &str) -> Result<(), PlatformsError> {
    let is_plain = |byte: u8| byte.is_ascii_graphic() && !b"{}*?#%\"<>\\".contains(&byte);
    let is_segment = |segment: &str| !segment.starts_with(':') && segment != "." && segment != "..";
    let is_route = route.starts_with('/')
        && route.len() <= MAX_ROUTE
        && route.bytes().all(is_plain)
        && route.split('/').all(is_segment)
        && ![PING, INVOCATIONS].contains(&route);
    if is_route {
        return Ok(());
    }
    Err(PlatformsError::Route(
        route.chars().take(MAX_ROUTE).collect(),
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn vertex(health: &str, predict: &str) -> Result<Platforms, PlatformsError> {
        let routes = VertexRoutes {
            health: health.to_owned(),
            predict: predict.to_owned(),
        };
        Platforms::new(&[Platform::Vertex("m".to_owned())], &routes)
    }

    #[test]
    fn platforms_are_read_as_they_are_written() {
        for text in ["kserve-v1", "sagemaker=m", "vertex=a.b:3"] {
            assert_eq!(text.parse::<Platform>().unwrap().to_string(), text);
        }
        for text in [
            "",
            "kserve",
            "sagemaker",
            "sagemaker=",
            "vertex=a:",
            "vertex=a:0",
            "azure=m",
            "kserve-v1=m",
        ] {
            assert_eq!(text.parse::<Platform>(), Err(InvalidPlatform), "{text}");
        }
    }

    #[test]
    fn contradictions_are_refused() {
        let two = ["sagemaker=a", "sagemaker=b"].map(|text| text.parse().unwrap());
        let error = Platforms::new(&two, &VertexRoutes::default()).unwrap_err();
        assert_eq!(
            error.to_string(),
            "--platform sagemaker=b: the platform is given twice"
        );
        vertex(
            "/v1/endpoints/7/deployedModels/8",
            "/v1/endpoints/7/deployedModels/8:predict",
        )
        .unwrap();
        for route in [
            "", "predict", "/a b", "/{model}", "/*", "/:x", "/ping", "/a/../b", "/a?b",
        ] {
            assert!(vertex(route, "/predict").is_err(), "{route}");
            assert!(vertex("/health", route).is_err(), "{route}");
        }
    }

    #[test]
    fn a_request_is_for_the_model_of_its_platform() {
        let given = ["sagemaker=a:2", "vertex=b"].map(|text| text.parse().unwrap());
        let platforms = Platforms::new(&given, &VertexRoutes::default()).unwrap();
        let mut headers = HeaderMap::new();
        for (path, asked) in [
            ("/ping", Some(Asked::Health)),
            ("/health", Some(Asked::Health)),
            ("/invocations", Some(Asked::Model("a:2"))),
            ("/predict", Some(Asked::Model("b"))),
            ("/v2", None),
        ] {
            assert_eq!(platforms.asked(path, &headers).unwrap(), asked, "{path}");
        }
        headers.insert(TARGET_MODEL, "c".parse().unwrap());
        for (path, model) in [("/invocations", "c"), ("/predict", "b")] {
            let asked = platforms.asked(path, &headers).unwrap();
            assert_eq!(asked, Some(Asked::Model(model)), "{path}");
        }
        headers.insert(TARGET_MODEL, "".parse().unwrap());
        assert!(platforms.asked("/invocations", &headers).is_err());
        let off = Platforms::default();
        assert_eq!(off.asked("/ping", &HeaderMap::new()).unwrap(), None);
    }
}
