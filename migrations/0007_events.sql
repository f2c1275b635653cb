-- The newest events of the cluster, for those who read on where they stopped. The numbers ascend and are never used again: the oldest
-- events are deleted, the newest never.
CREATE TABLE events (
    id BIGINT PRIMARY KEY NOT NULL,
    -- The name of the event in the stream: model, node, device, replica, plan, drift or finding.
    kind TEXT NOT NULL,
    -- The event as the API describes it, in JSON.
    body TEXT NOT NULL
);
