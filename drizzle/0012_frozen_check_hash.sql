-- The hash of a proof is frozen with its key, a re-wrap included: it is under no master key. Otherwise as in 0003.
CREATE OR REPLACE FUNCTION "keep_rotated_key"() RETURNS trigger LANGUAGE plpgsql AS $$
DECLARE
	rewrap boolean := coalesce(current_setting('strongroom.rewrap', true), '') = 'on';
BEGIN
	IF (NEW.id, NEW.organization_id, NEW.project_id, NEW.version, NEW.managed, NEW.iterations, NEW.is_active, NEW.created_at, NEW.rotated_at)
			IS DISTINCT FROM (OLD.id, OLD.organization_id, OLD.project_id, OLD.version, OLD.managed, OLD.iterations, OLD.is_active, OLD.created_at, OLD.rotated_at)
		OR (NEW.hint IS DISTINCT FROM OLD.hint)
		OR (NEW.key_check_hash IS DISTINCT FROM OLD.key_check_hash)
		OR (NEW.key_check IS NULL) <> (OLD.key_check IS NULL)
		OR (NOT rewrap AND (NEW.salt, NEW.key_check) IS DISTINCT FROM (OLD.salt, OLD.key_check))
		OR (NEW.key_string IS NOT NULL AND NEW.key_string IS DISTINCT FROM OLD.key_string AND NOT (rewrap AND OLD.key_string IS NOT NULL))
		OR (NEW.data_key IS NOT NULL AND NEW.data_key IS DISTINCT FROM OLD.data_key AND NOT (rewrap AND OLD.data_key IS NOT NULL))
	THEN
		RAISE EXCEPTION 'a rotated key is never changed' USING ERRCODE = 'integrity_constraint_violation';
	END IF;
	RETURN NEW;
END $$;
