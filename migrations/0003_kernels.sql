-- The kernels that were recorded with a profile, as CSV: one batch of every size that was measured. NULL where none run, as on a CPU,
-- and for profiles that were imported.
ALTER TABLE profiles ADD COLUMN kernels TEXT;
