BEGIN TRANSACTION;
CREATE TABLE _sqlx_migrations (
    version BIGINT PRIMARY KEY,
    description TEXT NOT NULL,
    installed_on TIMESTAMP NOT NULL DEFAULT CURRENT_TIMESTAMP,
    success BOOLEAN NOT NULL,
    checksum BLOB NOT NULL,
    execution_time BIGINT NOT NULL
);
INSERT INTO "_sqlx_migrations" VALUES(1,'cluster','2026-11-24 02:40:02',1,X'691327574F048AE5E4E3DFEF95B67F0C6820A977BF2A3D7152C41118DF74F922EAEC11DA99136D69F004E9D714ED1462',1002368);
INSERT INTO "_sqlx_migrations" VALUES(2,'queue limit','2026-11-24 02:40:02',1,X'E67D6BA07AEB99623152DB56C236C32CEEF3EFA4FC92E87C92CD69D29442B901E6FB5B61015336FF3C0DA15A5614CF47',494314);
INSERT INTO "_sqlx_migrations" VALUES(3,'kernels','2026-11-24 02:40:02',1,X'BF5A3EA95C7C8DF922ACB54E24DF371D31213B149EE45E097C62BE17E95A646F82BACE18F823EB3EAAFDE2CDF379FB14',468516);
INSERT INTO "_sqlx_migrations" VALUES(4,'pairs','2026-11-24 02:40:02',1,X'BF39E66AA3050C38C1D4886EAF195A04B9480BF8D18B7D7A6A104163662B831E3B71163FFE3B64BB523D462ABEDCBB0B',559000);
CREATE TABLE artifacts (
    digest TEXT PRIMARY KEY NOT NULL,
    bytes BIGINT NOT NULL,
    created_ms BIGINT NOT NULL
);
INSERT INTO "artifacts" VALUES('sha256:ebf12efdd3fca03a7bc4ccccb3c74f718ccebe62368e667dcfdcfec4e5646635',15,1795488002638);
INSERT INTO "artifacts" VALUES('sha256:77bdf4e3a35b366238095bad3de535f5f82b127a68b5f7f6fba64ccc66d425fe',15,1795488002653);
INSERT INTO "artifacts" VALUES('sha256:4033893883629386fbe67e2e1277a442c214475d79dcce21fd5419072c9422e9',22,1795488002670);
CREATE TABLE epochs (
    epoch BIGINT PRIMARY KEY NOT NULL,
    started_ms BIGINT NOT NULL
);
INSERT INTO "epochs" VALUES(1,1795488002586);
CREATE TABLE models (
    name TEXT NOT NULL,
    version BIGINT NOT NULL,
    artifact TEXT NOT NULL REFERENCES artifacts (digest),
    max_batch_size BIGINT NOT NULL,
    -- JSON arrays of tensor specifications.
    inputs TEXT NOT NULL,
    outputs TEXT NOT NULL,
    slo_ms DOUBLE PRECISION NOT NULL,
    rate_rps DOUBLE PRECISION NOT NULL,
    -- Why it cannot be served as it is registered; NULL while nothing speaks against it.
    failure TEXT,
    -- The newest plan there was when it was registered: what plans up to it say of this name is about an earlier model.
    after_plan BIGINT NOT NULL,
    created_ms BIGINT NOT NULL, queue_limit BIGINT,
    PRIMARY KEY (name, version)
);
INSERT INTO "models" VALUES('cat',1,'sha256:ebf12efdd3fca03a7bc4ccccb3c74f718ccebe62368e667dcfdcfec4e5646635',8,'[{"name":"x","datatype":"FP32","shape":[-1,4]}]','[{"name":"y","datatype":"FP32","shape":[-1,2]}]',20000.0,10.0,NULL,0,1795488002641,NULL);
INSERT INTO "models" VALUES('dog',1,'sha256:77bdf4e3a35b366238095bad3de535f5f82b127a68b5f7f6fba64ccc66d425fe',8,'[{"name":"x","datatype":"FP32","shape":[-1,4]}]','[{"name":"y","datatype":"FP32","shape":[-1,2]}]',150.0,25.0,NULL,0,1795488002659,NULL);
INSERT INTO "models" VALUES('cat',2,'sha256:4033893883629386fbe67e2e1277a442c214475d79dcce21fd5419072c9422e9',8,'[{"name":"x","datatype":"FP32","shape":[-1,4]}]','[{"name":"y","datatype":"FP32","shape":[-1,2]}]',20000.0,10.0,NULL,0,1795488002674,NULL);
CREATE TABLE nodes (
    name TEXT PRIMARY KEY NOT NULL,
    agent_version TEXT NOT NULL,
    -- JSON array of device reports.
    devices TEXT NOT NULL,
    -- What the admin wants of it: open, cordoned or draining.
    scheduling TEXT NOT NULL
);
INSERT INTO "nodes" VALUES('node1','0.1.0','[{"name":"sim0","kind":"V100-SXM2-16GB","memory_bytes":17179869184,"multiprocessors":80,"description":"simulated V100-SXM2-16GB"},{"name":"sim1","kind":"V100-SXM2-16GB","memory_bytes":17179869184,"multiprocessors":80,"description":"simulated V100-SXM2-16GB"}]','"cordoned"');
CREATE TABLE pairs (
    device_kind TEXT NOT NULL PRIMARY KEY,
    csv TEXT NOT NULL,
    created_ms BIGINT NOT NULL
);
CREATE TABLE plans (
    generation BIGINT PRIMARY KEY NOT NULL,
    policy TEXT NOT NULL,
    reason TEXT NOT NULL,
    solve_ms DOUBLE PRECISION NOT NULL,
    created_ms BIGINT NOT NULL,
    -- JSON arrays of placements and forecasts.
    replicas TEXT NOT NULL,
    models TEXT NOT NULL
);
INSERT INTO "plans" VALUES(1,'goodput','model cat:1 was registered, model cat:1 was measured on V100-SXM2-16GB, model dog:1 was registered, and 3 more changes',1.552996,1795488002695,'[{"id":"1-0","model":"cat:1","device":"node1/sim0","device_kind":"V100-SXM2-16GB","batch_size":8,"compute_share":null,"duty_cycle_ms":null},{"id":"1-1","model":"cat:2","device":"node1/sim0","device_kind":"V100-SXM2-16GB","batch_size":8,"compute_share":null,"duty_cycle_ms":null},{"id":"1-2","model":"dog:1","device":"node1/sim0","device_kind":"V100-SXM2-16GB","batch_size":8,"compute_share":null,"duty_cycle_ms":null}]','[{"model":"cat:1","rate":10.0,"goodput":10.0,"shortfall":null},{"model":"cat:2","rate":10.0,"goodput":10.0,"shortfall":null},{"model":"dog:1","rate":10.0,"goodput":10.0,"shortfall":null}]');
CREATE TABLE profiles (
    name TEXT NOT NULL,
    version BIGINT NOT NULL,
    device_kind TEXT NOT NULL,
    -- The rows in the CSV contract, header included.
    csv TEXT NOT NULL,
    created_ms BIGINT NOT NULL, kernels TEXT,
    PRIMARY KEY (name, version, device_kind)
);
INSERT INTO "profiles" VALUES('cat',1,'V100-SXM2-16GB','model,device_kind,batch_size,compute_share_pct,latency_ms,latency_p99_ms,memory_mib,achieved_occupancy_pct,mean_occupancy_pct,sm_utilization_pct
cat:1,V100-SXM2-16GB,1,100.0,20.0,,500.0,30.0,30.0,30.0
cat:1,V100-SXM2-16GB,2,100.0,20.0,,500.0,30.0,30.0,30.0
cat:1,V100-SXM2-16GB,4,100.0,20.0,,500.0,30.0,30.0,30.0
cat:1,V100-SXM2-16GB,8,100.0,20.0,,500.0,30.0,30.0,30.0
',1795488002654,NULL);
INSERT INTO "profiles" VALUES('dog',1,'V100-SXM2-16GB','model,device_kind,batch_size,compute_share_pct,latency_ms,latency_p99_ms,memory_mib,achieved_occupancy_pct,mean_occupancy_pct,sm_utilization_pct
dog:1,V100-SXM2-16GB,1,100.0,30.0,,500.0,30.0,30.0,30.0
dog:1,V100-SXM2-16GB,2,100.0,30.0,,500.0,30.0,30.0,30.0
dog:1,V100-SXM2-16GB,4,100.0,30.0,,500.0,30.0,30.0,30.0
dog:1,V100-SXM2-16GB,8,100.0,30.0,,500.0,30.0,30.0,30.0
',1795488002673,NULL);
INSERT INTO "profiles" VALUES('cat',2,'V100-SXM2-16GB','model,device_kind,batch_size,compute_share_pct,latency_ms,latency_p99_ms,memory_mib,achieved_occupancy_pct,mean_occupancy_pct,sm_utilization_pct
cat:2,V100-SXM2-16GB,1,100.0,22.0,,500.0,30.0,30.0,30.0
cat:2,V100-SXM2-16GB,2,100.0,22.0,,500.0,30.0,30.0,30.0
cat:2,V100-SXM2-16GB,4,100.0,22.0,,500.0,30.0,30.0,30.0
cat:2,V100-SXM2-16GB,8,100.0,22.0,,500.0,30.0,30.0,30.0
',1795488002690,NULL);
CREATE TABLE settings (
    name TEXT PRIMARY KEY NOT NULL,
    value TEXT NOT NULL
);
INSERT INTO "settings" VALUES('policy','first-fit');
INSERT INTO "settings" VALUES('discipline','fixed-wait');
CREATE INDEX models_by_artifact ON models (artifact);
COMMIT;
