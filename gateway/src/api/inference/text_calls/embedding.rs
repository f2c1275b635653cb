//! Embeddings from the outputs of a model: pooled, cut and brought to the length of one.

use packhorse_cluster::{Embedding, Pool};

/// Returns the embedding of a row: the vectors of its tokens, of which the row has `tokens` and the output may have more, or one vector. `dimensions`
/// of them are left if that many are wanted, and brought to the length of one again.
pub(super) fn embedding(
    row: &[f64],
    size: usize,
    tokens: usize,
    declared: Embedding,
    dimensions: Option<usize>,
) -> Vec<f64> {
    let mut vectors = row.chunks_exact(size.max(1)).take(tokens.max(1));
    let mut vector: Vec<f64> = match declared.pool {
        None | Some(Pool::Cls) => vectors.next().unwrap_or_default().to_vec(),
        Some(Pool::Last) => vectors.next_back().unwrap_or_default().to_vec(),
        Some(Pool::Mean) => {
            let count = vectors.len().max(1) as f64;
            let mut sum = vec![0.0; size];
            for vector in vectors {
                for (sum, number) in sum.iter_mut().zip(vector) {
                    *sum += number;
                }
            }
            sum.iter().map(|sum| sum / count).collect()
        }
    };
    if let Some(dimensions) = dimensions {
        vector.truncate(dimensions);
    }
    if declared.normalize || dimensions.is_some() {
        let length = vector.iter().map(|number| number * number).sum::<f64>();
        let length = length.sqrt().max(1e-12);
        for number in &mut vector {
            *number /= length;
        }
    }
    vector
}

#[cfg(test)]
mod tests {
    use super::*;

    const ROW: [f64; 6] = [3.0, 4.0, 1.0, 2.0, 100.0, 100.0];

    fn of(pool: Option<Pool>, normalize: bool, dimensions: Option<usize>) -> Vec<f32> {
        let made = embedding(&ROW, 2, 2, Embedding { pool, normalize }, dimensions);
        made.into_iter().map(|number| number as f32).collect()
    }

    #[test]
    fn tokens_beyond_those_of_the_row_do_not_count() {
        assert_eq!(of(Some(Pool::Mean), false, None), [2.0, 3.0]);
        assert_eq!(of(Some(Pool::Cls), false, None), [3.0, 4.0]);
        assert_eq!(of(Some(Pool::Last), false, None), [1.0, 2.0]);
    }

    #[test]
    fn a_vector_that_is_cut_has_the_length_of_one_again() {
        assert_eq!(of(None, false, None), [3.0, 4.0]);
        assert_eq!(of(None, true, None), [0.6, 0.8]);
        assert_eq!(of(None, false, Some(1)), [1.0]);
        let zero = Embedding {
            pool: None,
            normalize: true,
        };
        assert_eq!(embedding(&[0.0, 0.0], 2, 1, zero, None), [0.0, 0.0]);
    }
}
