//! The position of a request in a trace, as the header `traceparent` of W3C Trace Context carries it.

use std::fmt;

use axum::http::{HeaderMap, HeaderValue};

use super::sample_ratio::SampleRatio;

/// The header's name.
pub(super) const TRACEPARENT: &str = "traceparent";
/// The number of bytes of a header of version 00.
const LENGTH: usize = 55;

/// The ids of a span.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct SpanIds {
    pub(super) trace: u128,
    pub(super) span: u64,
}

impl SpanIds {
    /// Creates the ids of a new trace's first span.
    pub(super) fn root() -> Self {
        Self {
            // An id of zeros is invalid.
            trace: rand::random::<u128>().max(1),
            span: random_span(),
        }
    }
}

/// Returns the id of a new span.
pub(super) fn random_span() -> u64 {
    rand::random::<u64>().max(1)
}

/// The position of a request in a trace.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct TraceContext {
    /// The ids of the request's span.
    pub(super) ids: SpanIds,
    /// The span of the client that the request's span belongs to.
    pub(super) parent: Option<u64>,
    /// True if the request is exported even if it meets its SLO.
    pub(super) is_sampled: bool,
}

impl TraceContext {
    /// Continues the trace that a request's headers name; begins one if they name none. The client decides about its own trace, the
    /// ratio about others.
    pub(super) fn of_request(headers: &HeaderMap, ratio: SampleRatio) -> Self {
        if let Some((parent, is_sampled)) = parent_of(headers) {
            let span = random_span();
            return Self {
                ids: SpanIds { span, ..parent },
                parent: Some(parent.span),
                is_sampled,
            };
        }
        let ids = SpanIds::root();
        Self {
            ids,
            parent: None,
            is_sampled: ratio.includes(ids.trace),
        }
    }

    /// Returns the position of another request of the same parent.
    pub(super) fn sibling(self) -> Self {
        let span = random_span();
        Self {
            ids: SpanIds { span, ..self.ids },
            ..self
        }
    }

    /// Returns the header that names the request's span.
    pub(super) fn header(&self) -> HeaderValue {
        let text = self.to_string();
        HeaderValue::from_str(&text).expect("hexadecimal digits and dashes are valid")
    }
}

impl fmt::Display for TraceContext {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let SpanIds { trace, span } = self.ids;
        let flags = u8::from(self.is_sampled);
        write!(f, "00-{trace:032x}-{span:016x}-{flags:02x}")
    }
}

/// Returns the id of the trace that a request's headers name.
pub(super) fn trace_of(headers: &HeaderMap) -> Option<u128> {
    parent_of(headers).map(|(parent, _)| parent.trace)
}

/// Returns the client's span that a request's headers name, and its flag `sampled`.
fn parent_of(headers: &HeaderMap) -> Option<(SpanIds, bool)> {
    let mut values = headers.get_all(TRACEPARENT).iter();
    match (values.next(), values.next()) {
        (Some(value), None) => parse(value.as_bytes()),
        _ => None,
    }
}

/// Parses a header: the ids of the client's span, and its flag `sampled`. A later version may have more after a dash.
fn parse(header: &[u8]) -> Option<(SpanIds, bool)> {
    let (known, rest) = header.split_at_checked(LENGTH)?;
    let known = str::from_utf8(known).ok()?;
    let mut fields = known.split('-');
    let version = hexadecimal(fields.next()?, 2)?;
    let trace = hexadecimal(fields.next()?, 32)?;
    let span = u64::try_from(hexadecimal(fields.next()?, 16)?).ok()?;
    let flags = hexadecimal(fields.next()?, 2)?;
    let ends = match version {
        0xff => false,
        0 => rest.is_empty(),
        _ => rest.is_empty() || rest[0] == b'-',
    };
    let is_valid = ends && fields.next().is_none() && trace != 0 && span != 0;
    is_valid.then_some((SpanIds { trace, span }, flags & 1 == 1))
}

/// Parses a field of `length` hexadecimal digits; capitals are invalid.
fn hexadecimal(field: &str, length: usize) -> Option<u128> {
    let is_digit = |byte: u8| byte.is_ascii_digit() || (b'a'..=b'f').contains(&byte);
    (field.len() == length && field.bytes().all(is_digit))
        .then(|| u128::from_str_radix(field, 16).ok())?
}

#[cfg(test)]
mod tests {
    use super::*;

    const EXAMPLE: &str = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01";

    fn context(values: &[&str], ratio: f64) -> TraceContext {
        let mut headers = HeaderMap::new();
        for value in values {
            headers.append(TRACEPARENT, HeaderValue::from_str(value).unwrap());
        }
        TraceContext::of_request(&headers, SampleRatio::new(ratio).unwrap())
    }

    #[test]
    fn the_trace_of_a_client_is_continued_with_its_choice() {
        let sampled = context(&[EXAMPLE], 0.0);
        assert_eq!(sampled.ids.trace, 0x4bf9_2f35_77b3_4da6_a3ce_929d_0e0e_4736);
        assert_eq!(sampled.parent, Some(0x00f0_67aa_0ba9_02b7));
        assert_ne!(sampled.parent, Some(sampled.ids.span));
        assert!(sampled.is_sampled);
        let left_out = context(&[&EXAMPLE.replace("-01", "-00")], 1.0);
        assert!(!left_out.is_sampled);
        assert!(context(&[&format!("cc{}-more", &EXAMPLE[2..])], 0.0).is_sampled);
        let header = sampled.header();
        assert_eq!(header.to_str().unwrap()[..36], EXAMPLE[..36]);
        let (ids, is_sampled) = parse(header.as_bytes()).unwrap();
        assert_eq!((ids, is_sampled), (sampled.ids, true));
    }

    #[test]
    fn a_malformed_header_begins_a_new_trace() {
        let long = format!("{EXAMPLE}-more");
        for values in [
            &[][..],
            &[""],
            &[EXAMPLE, EXAMPLE],
            &[&long],
            &[&EXAMPLE.to_uppercase()],
            &[&format!("ff{}", &EXAMPLE[2..])],
            &[&EXAMPLE.replace("00f067aa0ba902b7", "0000000000000000")],
            &[&EXAMPLE.replace("4bf92f3577b34da6a3ce929d0e0e4736", &"0".repeat(32))],
            &[&EXAMPLE.replace("4bf9", "+bf9")],
            &[&EXAMPLE[..54]],
            &["00-4bf92f3577b34da6a3ce929d0e0e47360-0f067aa0ba902b7-01"],
        ] {
            let context = context(values, 0.0);
            assert_eq!(
                (context.parent, context.is_sampled),
                (None, false),
                "{values:?}"
            );
        }
    }
}
