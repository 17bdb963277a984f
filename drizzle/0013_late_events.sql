CREATE TABLE "late_events" (
	"organization_id" char(26) NOT NULL,
	"id" bigint GENERATED ALWAYS AS IDENTITY (sequence name "late_events_id_seq" INCREMENT BY 1 MINVALUE 1 MAXVALUE 9223372036854775807 START WITH 1 CACHE 1),
	"occurred_at" timestamp (3) with time zone DEFAULT now() NOT NULL,
	"event" jsonb NOT NULL,
	CONSTRAINT "late_events_organization_id_id_pk" PRIMARY KEY("organization_id","id")
);
