-- What was measured, by what it depends on, so that a program is not measured again under another name or after its removal. The CSV is a
-- profile of the model that was measured. The oldest rows are deleted once there are too many.
CREATE TABLE measurements (
    artifact TEXT NOT NULL,
    device_kind TEXT NOT NULL,
    -- The largest batch, and the datatypes and shapes of inputs and outputs.
    signature TEXT NOT NULL,
    libtorch TEXT NOT NULL,
    csv TEXT NOT NULL,
    created_ms BIGINT NOT NULL,
    PRIMARY KEY (artifact, device_kind, signature, libtorch)
);
