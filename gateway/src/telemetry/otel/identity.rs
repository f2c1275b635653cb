//! The identity of a request in answers, logs and traces.

use axum::http::{HeaderMap, HeaderName, HeaderValue};

use super::{
    context::{TRACEPARENT, TraceContext, trace_of},
    sample_ratio::SampleRatio,
};
use crate::tenant::TenantName;

/// The header with the id of a request.
pub(crate) static REQUEST_ID: HeaderName = HeaderName::from_static("x-request-id");
/// The largest number of bytes of an id that a client may choose.
const MAX_ID: usize = 128;

/// The identity of a request.
#[derive(Clone, Debug)]
pub(crate) struct RequestIdentity {
    id: HeaderValue,
    pub(super) trace: Option<TraceContext>,
    /// The trace that its client named, where nothing exports traces.
    client_trace: Option<u128>,
    tenant: TenantName,
}

impl RequestIdentity {
    /// Creates the identity of a request with these headers: the id is the client's if it has 1 to 128 visible ASCII characters, else a
    /// new one. Without the ratio of a tracer the request belongs to no trace.
    pub(crate) fn new(headers: &HeaderMap, ratio: Option<SampleRatio>) -> Self {
        let given = headers.get(&REQUEST_ID).filter(|id| is_sane(id.as_bytes()));
        let trace = ratio.map(|ratio| TraceContext::of_request(headers, ratio));
        Self {
            id: given.cloned().unwrap_or_else(random_id),
            trace,
            client_trace: if trace.is_none() {
                trace_of(headers)
            } else {
                None
            },
            tenant: TenantName::Local,
        }
    }

    /// Sets the tenant that sent the request.
    pub(crate) fn sent_by(mut self, tenant: TenantName) -> Self {
        self.tenant = tenant;
        self
    }

    /// Returns the identity of a request of the stream that has this one, the request's number counted from 1: it has an id and a span of its own.
    pub(crate) fn of_request(&self, number: u64) -> Self {
        let suffix = format!("-{number}");
        let id = self.id();
        let id = &id[..id.len().min(MAX_ID - suffix.len())];
        let id = HeaderValue::try_from(format!("{id}{suffix}"));
        Self {
            id: id.expect("visible characters of ASCII are valid"),
            trace: self.trace.map(TraceContext::sibling),
            ..self.clone()
        }
    }

    /// Sets the id that the client gave the request in its message, if it can be printed.
    pub(crate) fn named(mut self, id: &str) -> Self {
        if is_sane(id.as_bytes())
            && let Ok(id) = HeaderValue::try_from(id)
        {
            self.id = id;
        }
        self
    }

    /// Returns the id.
    pub(crate) fn id(&self) -> &str {
        self.id.to_str().unwrap_or_default()
    }

    /// Returns the id of its trace, in hexadecimal digits, if it belongs to one.
    pub(crate) fn trace_id(&self) -> Option<String> {
        let trace = self.trace.map(|trace| trace.ids.trace);
        let trace = trace.or(self.client_trace);
        trace.map(|trace| format!("{trace:032x}"))
    }

    /// Returns the id of the API key that it came with.
    pub(crate) fn key(&self) -> Option<&str> {
        match &self.tenant {
            TenantName::Key(id) => Some(id),
            TenantName::Address(_) | TenantName::Local => None,
        }
    }

    /// Writes the id, and the position in the trace if there is one, to the headers of the answer.
    pub(crate) fn write_to(&self, headers: &mut HeaderMap) {
        // No other answer has the id. HTTP/2 would keep it for others all the same, and compare each with all that it has kept.
        let unrepeated = |mut value: HeaderValue| {
            value.set_sensitive(true);
            value
        };
        headers.insert(&REQUEST_ID, unrepeated(self.id.clone()));
        if let Some(trace) = &self.trace {
            headers.insert(TRACEPARENT, unrepeated(trace.header()));
        }
    }
}

fn is_sane(id: &[u8]) -> bool {
    (1..=MAX_ID).contains(&id.len()) && id.iter().all(u8::is_ascii_graphic)
}

fn random_id() -> HeaderValue {
    let id = format!("{:016x}", rand::random::<u64>());
    HeaderValue::try_from(id).expect("hexadecimal digits are valid")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn id_of(given: Option<&[u8]>) -> String {
        let mut headers = HeaderMap::new();
        if let Some(given) = given {
            headers.insert(&REQUEST_ID, HeaderValue::from_bytes(given).unwrap());
        }
        RequestIdentity::new(&headers, None).id().to_owned()
    }

    #[test]
    fn a_clients_id_is_kept_if_it_can_be_printed() {
        let longest = "x".repeat(MAX_ID);
        for id in ["1", "checkout/7:a=b", &longest] {
            assert_eq!(id_of(Some(id.as_bytes())), id);
        }
        let too_long = "x".repeat(MAX_ID + 1);
        for id in [
            &b""[..],
            b"a b",
            b"a\tb",
            "ä".as_bytes(),
            too_long.as_bytes(),
        ] {
            let made = id_of(Some(id));
            assert_eq!(made.len(), 16, "{made}");
        }
        assert_ne!(id_of(None), id_of(None));
    }

    #[test]
    fn each_request_of_a_stream_has_an_id_and_a_span_of_its_own() {
        let headers = HeaderMap::from_iter([(
            HeaderName::from_static("x-request-id"),
            HeaderValue::from_static("stream"),
        )]);
        let stream = RequestIdentity::new(&headers, SampleRatio::new(1.0));
        let [first, second] = [1, 2].map(|number| stream.of_request(number));
        assert_eq!((first.id(), second.id()), ("stream-1", "stream-2"));
        let spans = [&stream, &first, &second].map(|identity| identity.trace.unwrap().ids.span);
        assert!(spans[0] != spans[1] && spans[1] != spans[2]);
        assert_eq!(first.trace_id(), stream.trace_id());
        assert_eq!(first.clone().named("order-7").id(), "order-7");
        assert_eq!(first.clone().named("no id").id(), "stream-1");
        let longest = stream.named(&"x".repeat(MAX_ID));
        assert_eq!(longest.of_request(u64::MAX).id().len(), MAX_ID);
    }
}
