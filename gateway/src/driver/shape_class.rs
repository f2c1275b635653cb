//! The classes of requests that may share a batch of their model: those with equal shapes, apart from the batch dimension and, within
//! a factor of two, the padded ones: padding at most doubles a request. A class is the same for all models, as a request for a family
//! may go from one to another.

use std::collections::HashMap;

use packhorse_cluster::{Dim, Program, TensorSpec};
use packhorse_protocol::Tensor;
use packhorse_serving::ShapeClass;

/// The dimensions that the signature leaves open, input by input, and that must be equal. Empty for most models.
type OpenDims = Vec<u64>;

/// The numbers of the shapes of the present requests. It holds no other shapes: a client cannot make it grow.
#[derive(Debug)]
pub(super) struct ShapeClasses {
    classes: HashMap<OpenDims, CountedClass>,
    next: u64,
}

#[derive(Debug)]
struct CountedClass {
    class: ShapeClass,
    requests: usize,
}

/// A request's membership in its class, which ends with [`ShapeClasses::leave`].
#[derive(Debug)]
pub(super) struct Membership {
    key: OpenDims,
    pub(super) class: ShapeClass,
}

impl ShapeClasses {
    /// Creates classes whose numbers follow this one. The numbers of classes that are exchanged must never meet.
    pub(super) fn numbered_after(number: u64) -> Self {
        Self {
            classes: HashMap::new(),
            next: number,
        }
    }

    /// Counts a request that another driver had. Its class keeps its number: those of its shape that come now may have another one, and share no
    /// batch with it.
    pub(super) fn take_over(&mut self, membership: &Membership) {
        let class = membership.class;
        let counted = { self.classes.entry(membership.key.clone()) }
            .or_insert(CountedClass { class, requests: 0 });
        counted.requests += 1;
    }

    /// Returns the class of a request, and counts the request in it.
    pub(super) fn enter(&mut self, program: &Program, inputs: &[Tensor]) -> Membership {
        let key = open_dims(program, inputs);
        let counted = self.classes.entry(key.clone()).or_insert_with(|| {
            self.next += 1;
            CountedClass {
                class: ShapeClass(self.next),
                requests: 0,
            }
        });
        counted.requests += 1;
        Membership {
            class: counted.class,
            key,
        }
    }

    /// Removes a request that has ended from its class.
    pub(super) fn leave(&mut self, membership: &Membership) {
        let counted = self
            .classes
            .get_mut(&membership.key)
            .expect("a class exists as long as its members");
        counted.requests -= 1;
        if counted.requests == 0 {
            self.classes.remove(&membership.key);
        }
    }
}

/// The length up to which requests of all lengths share a batch.
const SHORTEST_BUCKET: u64 = 16;

/// Returns the length up to which inputs of a length are padded at most: the next power of two.
fn bucket(length: u64) -> u64 {
    length
        .max(SHORTEST_BUCKET)
        .checked_next_power_of_two()
        .unwrap_or(u64::MAX)
}

/// Returns the bytes that the inputs of a request add to a batch at most, padding included.
pub(super) fn padded_bytes(program: &Program, inputs: &[Tensor]) -> u64 {
    let of_input = |(spec, input): (&TensorSpec, &Tensor)| {
        let length = input.data().len() as u64;
        let axis = spec.pad.filter(|_| program.batches()).map(|pad| pad.axis);
        match axis.and_then(|axis| input.shape().dims().get(axis)) {
            // Nothing is known of an input without elements but that it is filled up to its bucket, in elements of 8 bytes at most.
            Some(0) => {
                let dims = input.shape().dims().iter().map(|dim| (*dim).max(1));
                dims.fold(8 * bucket(0), u64::saturating_mul)
            }
            Some(dim) => (length / dim).saturating_mul(bucket(*dim)),
            None => length,
        }
    };
    program.inputs.iter().zip(inputs).map(of_input).sum()
}

fn open_dims(program: &Program, inputs: &[Tensor]) -> OpenDims {
    if !program.batches() {
        // Such a request never shares a batch, whatever its shape.
        return OpenDims::new();
    }
    let mut open = OpenDims::new();
    for (spec, input) in program.inputs.iter().zip(inputs) {
        let padded = spec.pad.map(|pad| pad.axis);
        for (axis, (dim, size)) in spec.shape.iter().zip(input.shape().dims()).enumerate() {
            if axis > 0 && *dim == Dim::Any {
                let padded = Some(axis) == padded;
                open.push(if padded { bucket(*size) } else { *size });
            }
        }
    }
    open
}

#[cfg(test)]
mod tests {
    use packhorse_cluster::{Padding, Shape, TensorSpec};

    use super::*;
    use crate::test_programs::{self, spec};

    fn program(pad: Option<Padding>) -> Program {
        let output = spec("x", &[-1, -1, 2]);
        let input = TensorSpec {
            pad,
            ..output.clone()
        };
        test_programs::program(8, vec![input], vec![output])
    }

    fn input(rows: i64, length: i64) -> Vec<Tensor> {
        let shape = Shape::new(&[rows, length, 2]).unwrap();
        let data = vec![0_u8; shape.elements() as usize];
        vec![Tensor::from_values("x", shape, &data).unwrap()]
    }

    #[test]
    fn rows_and_similar_padded_lengths_do_not_separate_requests_and_other_lengths_do() {
        let mut classes = ShapeClasses::numbered_after(0);
        let mut class = |pad, input: &[Tensor]| classes.enter(&program(pad), input).class;
        let short = class(None, &input(1, 3));
        assert_eq!(class(None, &input(4, 3)), short);
        assert_ne!(class(None, &input(1, 4)), short);
        let padding = Some(Padding {
            axis: 1,
            value: 0.0,
        });
        let padded = class(padding, &input(1, 3));
        assert_eq!(class(padding, &input(2, 4)), padded);
        assert_eq!(class(padding, &input(2, 16)), padded);
        let longer = class(padding, &input(1, 17));
        assert_ne!(
            longer, padded,
            "padding would more than double the shorter one"
        );
        assert_eq!(class(padding, &input(1, 32)), longer);
    }

    #[test]
    fn the_bytes_of_a_request_are_those_of_its_bucket() {
        let padding = Some(Padding {
            axis: 1,
            value: 0.0,
        });
        let bytes = |pad, length| padded_bytes(&program(pad), &input(3, length));
        assert_eq!(bytes(None, 17), 3 * 17 * 2);
        assert_eq!(bytes(padding, 17), 3 * 32 * 2);
        assert_eq!(bytes(padding, 1), 3 * 16 * 2);
        assert!(bytes(padding, 0) >= 3 * 16 * 2, "it may be filled, too");
    }

    #[test]
    fn a_class_is_forgotten_with_its_last_request() {
        let mut classes = ShapeClasses::numbered_after(0);
        for length in 1..1000 {
            let membership = classes.enter(&program(None), &input(1, length));
            classes.leave(&membership);
        }
        assert!(classes.classes.is_empty());
    }
}
