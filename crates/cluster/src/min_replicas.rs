//! The least number of devices that a model has replicas on.

use crate::small_number::small_number;

small_number! {
    /// The least number of different devices that a model has replicas on, from 1 to 16: with two, a device may fail and the model answers.
    pub struct MinReplicas;
    /// The error for a number of replicas that no model can ask for.
    pub struct MinReplicasError;
    "a number of replicas" from 1 to 16
}

impl MinReplicas {
    /// The largest number.
    pub const MOST: usize = 16;

    /// Returns the number.
    pub fn get(self) -> usize {
        self.0.into()
    }
}

impl Default for MinReplicas {
    /// Returns the number for which a model need not ask: 1, its home.
    fn default() -> Self {
        Self(1)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_model_has_1_to_16_replicas_and_1_by_default() {
        assert_eq!(MinReplicas::default().get(), 1);
        for number in 1..=16 {
            let replicas = MinReplicas::new(number).unwrap();
            assert_eq!(replicas.to_string().parse(), Ok(replicas));
            let json = serde_json::to_string(&replicas).unwrap();
            assert_eq!(json, number.to_string());
        }
        for wrong in ["0", "17", "-1", "1.5", "\"2\""] {
            assert!(
                serde_json::from_str::<MinReplicas>(wrong).is_err(),
                "{wrong}"
            );
        }
        let error = "17".parse::<MinReplicas>().unwrap_err().to_string();
        assert_eq!(error, "expected a number of replicas from 1 to 16, got 17");
        let error = "two".parse::<MinReplicas>().unwrap_err().to_string();
        assert_eq!(
            error,
            "expected a number of replicas from 1 to 16, got \"two\""
        );
    }
}
