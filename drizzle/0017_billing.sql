CREATE TABLE "api_usage" (
	"organization_id" char(26) NOT NULL,
	"month" date NOT NULL,
	"calls" bigint NOT NULL,
	CONSTRAINT "api_usage_organization_id_month_pk" PRIMARY KEY("organization_id","month")
);
--> statement-breakpoint
CREATE TABLE "billing_accounts" (
	"organization_id" char(26) PRIMARY KEY NOT NULL,
	"name" varchar(255) DEFAULT '' NOT NULL,
	"address" varchar(1000) DEFAULT '' NOT NULL,
	"tax_id" varchar(64) DEFAULT '' NOT NULL,
	"next_invoice" integer DEFAULT 1 NOT NULL,
	"credit" bigint DEFAULT 0 NOT NULL,
	"credit_currency" char(3),
	"coupon" varchar(64),
	"created_at" timestamp (3) with time zone DEFAULT now() NOT NULL,
	"updated_at" timestamp (3) with time zone DEFAULT now() NOT NULL,
	CONSTRAINT "billing_accounts_credit" CHECK ("billing_accounts"."credit" >= 0)
);
--> statement-breakpoint
CREATE TABLE "charges" (
	"organization_id" char(26) NOT NULL,
	"id" char(26) NOT NULL,
	"invoice_id" char(26) NOT NULL,
	"payment_method_id" char(26),
	"provider" varchar(32) NOT NULL,
	"provider_reference" varchar(255),
	"status" varchar(16) DEFAULT 'pending' NOT NULL,
	"currency" char(3) NOT NULL,
	"amount" bigint NOT NULL,
	"refunded" bigint DEFAULT 0 NOT NULL,
	"submitted_at" timestamp (3) with time zone,
	"settled_at" timestamp (3) with time zone,
	"created_at" timestamp (3) with time zone DEFAULT now() NOT NULL,
	CONSTRAINT "charges_organization_id_id_pk" PRIMARY KEY("organization_id","id"),
	CONSTRAINT "charges_refunded" CHECK ("charges"."amount" > 0 AND "charges"."refunded" BETWEEN 0 AND "charges"."amount")
);
--> statement-breakpoint
CREATE TABLE "coupons" (
	"code" varchar(64) PRIMARY KEY NOT NULL,
	"percent_off" integer,
	"amount_off" bigint,
	"currency" char(3),
	"valid_until" timestamp (3) with time zone,
	"max_redemptions" integer,
	"redemptions" integer DEFAULT 0 NOT NULL,
	"created_at" timestamp (3) with time zone DEFAULT now() NOT NULL,
	CONSTRAINT "coupons_off" CHECK (CASE WHEN "coupons"."percent_off" is null THEN "coupons"."amount_off" > 0 AND "coupons"."currency" is not null
    ELSE "coupons"."percent_off" BETWEEN 1 AND 100 AND "coupons"."amount_off" is null AND "coupons"."currency" is null END)
);
--> statement-breakpoint
CREATE TABLE "idempotency_keys" (
	"organization_id" char(26) NOT NULL,
	"principal" varchar(32) NOT NULL,
	"key" varchar(255) NOT NULL,
	"request" "bytea" NOT NULL,
	"status" integer NOT NULL,
	"answer" jsonb NOT NULL,
	"created_at" timestamp (3) with time zone DEFAULT now() NOT NULL,
	CONSTRAINT "idempotency_keys_organization_id_principal_key_pk" PRIMARY KEY("organization_id","principal","key")
);
--> statement-breakpoint
CREATE TABLE "invoices" (
	"organization_id" char(26) NOT NULL,
	"id" char(26) NOT NULL,
	"number" integer NOT NULL,
	"status" varchar(8) NOT NULL,
	"currency" char(3) NOT NULL,
	"lines" jsonb NOT NULL,
	"subtotal" bigint NOT NULL,
	"discount" bigint NOT NULL,
	"credit" bigint NOT NULL,
	"total" bigint NOT NULL,
	"seller" jsonb NOT NULL,
	"buyer" jsonb NOT NULL,
	"issued_at" timestamp (3) with time zone DEFAULT now() NOT NULL,
	"due_at" timestamp (3) with time zone NOT NULL,
	"paid_at" timestamp (3) with time zone,
	CONSTRAINT "invoices_organization_id_id_pk" PRIMARY KEY("organization_id","id"),
	CONSTRAINT "invoices_total" CHECK ("invoices"."total" >= 0 AND "invoices"."subtotal" = "invoices"."discount" + "invoices"."credit" + "invoices"."total")
);
--> statement-breakpoint
CREATE TABLE "payment_methods" (
	"organization_id" char(26) NOT NULL,
	"id" char(26) NOT NULL,
	"kind" varchar(16) NOT NULL,
	"label" varchar(255) NOT NULL,
	"reference" varchar(255),
	"is_default" boolean NOT NULL,
	"created_at" timestamp (3) with time zone DEFAULT now() NOT NULL,
	CONSTRAINT "payment_methods_organization_id_id_pk" PRIMARY KEY("organization_id","id")
);
--> statement-breakpoint
CREATE TABLE "plan_prices" (
	"plan" varchar(64) NOT NULL,
	"interval" varchar(8) NOT NULL,
	"currency" char(3) NOT NULL,
	"amount" bigint NOT NULL,
	CONSTRAINT "plan_prices_plan_interval_currency_pk" PRIMARY KEY("plan","interval","currency"),
	CONSTRAINT "plan_prices_amount" CHECK ("plan_prices"."amount" > 0)
);
--> statement-breakpoint
CREATE TABLE "refunds" (
	"organization_id" char(26) NOT NULL,
	"id" char(26) NOT NULL,
	"charge_id" char(26) NOT NULL,
	"provider_reference" varchar(255),
	"status" varchar(16) DEFAULT 'pending' NOT NULL,
	"amount" bigint NOT NULL,
	"reason" varchar(255),
	"submitted_at" timestamp (3) with time zone,
	"settled_at" timestamp (3) with time zone,
	"created_at" timestamp (3) with time zone DEFAULT now() NOT NULL,
	CONSTRAINT "refunds_organization_id_id_pk" PRIMARY KEY("organization_id","id"),
	CONSTRAINT "refunds_amount" CHECK ("refunds"."amount" > 0)
);
--> statement-breakpoint
CREATE TABLE "subscriptions" (
	"organization_id" char(26) PRIMARY KEY NOT NULL,
	"id" char(26) NOT NULL,
	"plan" varchar(64) NOT NULL,
	"interval" varchar(8) NOT NULL,
	"currency" char(3) NOT NULL,
	"amount" bigint NOT NULL,
	"anchor" timestamp (3) with time zone NOT NULL,
	"periods" integer DEFAULT 0 NOT NULL,
	"period_start" timestamp (3) with time zone NOT NULL,
	"period_end" timestamp (3) with time zone NOT NULL,
	"invoiced" bigint NOT NULL,
	"cancel_at_period_end" boolean DEFAULT false NOT NULL,
	"created_at" timestamp (3) with time zone DEFAULT now() NOT NULL,
	"updated_at" timestamp (3) with time zone DEFAULT now() NOT NULL
);
--> statement-breakpoint
ALTER TABLE "plans" ADD COLUMN "max_bytes" bigint;--> statement-breakpoint
ALTER TABLE "api_usage" ADD CONSTRAINT "api_usage_organization_id_organizations_id_fk" FOREIGN KEY ("organization_id") REFERENCES "public"."organizations"("id") ON DELETE cascade ON UPDATE no action;--> statement-breakpoint
ALTER TABLE "billing_accounts" ADD CONSTRAINT "billing_accounts_organization_id_organizations_id_fk" FOREIGN KEY ("organization_id") REFERENCES "public"."organizations"("id") ON DELETE cascade ON UPDATE no action;--> statement-breakpoint
ALTER TABLE "billing_accounts" ADD CONSTRAINT "billing_accounts_coupon_coupons_code_fk" FOREIGN KEY ("coupon") REFERENCES "public"."coupons"("code") ON DELETE no action ON UPDATE no action;--> statement-breakpoint
ALTER TABLE "charges" ADD CONSTRAINT "charges_of_invoice" FOREIGN KEY ("organization_id","invoice_id") REFERENCES "public"."invoices"("organization_id","id") ON DELETE no action ON UPDATE no action;--> statement-breakpoint
ALTER TABLE "idempotency_keys" ADD CONSTRAINT "idempotency_keys_organization_id_organizations_id_fk" FOREIGN KEY ("organization_id") REFERENCES "public"."organizations"("id") ON DELETE cascade ON UPDATE no action;--> statement-breakpoint
ALTER TABLE "payment_methods" ADD CONSTRAINT "payment_methods_organization_id_organizations_id_fk" FOREIGN KEY ("organization_id") REFERENCES "public"."organizations"("id") ON DELETE cascade ON UPDATE no action;--> statement-breakpoint
ALTER TABLE "plan_prices" ADD CONSTRAINT "plan_prices_plan_plans_name_fk" FOREIGN KEY ("plan") REFERENCES "public"."plans"("name") ON DELETE cascade ON UPDATE no action;--> statement-breakpoint
ALTER TABLE "refunds" ADD CONSTRAINT "refunds_of_charge" FOREIGN KEY ("organization_id","charge_id") REFERENCES "public"."charges"("organization_id","id") ON DELETE no action ON UPDATE no action;--> statement-breakpoint
ALTER TABLE "subscriptions" ADD CONSTRAINT "subscriptions_organization_id_organizations_id_fk" FOREIGN KEY ("organization_id") REFERENCES "public"."organizations"("id") ON DELETE cascade ON UPDATE no action;--> statement-breakpoint
ALTER TABLE "subscriptions" ADD CONSTRAINT "subscriptions_plan_plans_name_fk" FOREIGN KEY ("plan") REFERENCES "public"."plans"("name") ON DELETE no action ON UPDATE no action;--> statement-breakpoint
CREATE INDEX "charges_by_invoice" ON "charges" USING btree ("organization_id","invoice_id");--> statement-breakpoint
CREATE INDEX "charges_to_submit" ON "charges" USING btree ("organization_id","id") WHERE "charges"."submitted_at" is null;--> statement-breakpoint
CREATE INDEX "idempotency_keys_organization_id_created_at_index" ON "idempotency_keys" USING btree ("organization_id","created_at");--> statement-breakpoint
CREATE UNIQUE INDEX "invoices_number_taken" ON "invoices" USING btree ("organization_id","number");--> statement-breakpoint
CREATE UNIQUE INDEX "payment_methods_one_default" ON "payment_methods" USING btree ("organization_id") WHERE "payment_methods"."is_default";--> statement-breakpoint
CREATE INDEX "refunds_by_charge" ON "refunds" USING btree ("organization_id","charge_id");--> statement-breakpoint
CREATE INDEX "refunds_to_submit" ON "refunds" USING btree ("organization_id","id") WHERE "refunds"."submitted_at" is null;--> statement-breakpoint
CREATE INDEX "subscriptions_period_end_index" ON "subscriptions" USING btree ("period_end");--> statement-breakpoint
-- Plans and prices are rows: the operator may change them. Null is without limit; a plan without a price is free.
UPDATE "plans" SET "max_bytes" = included.bytes FROM (VALUES
	('free', 10485760), ('pro', 1073741824), ('team', 10737418240)
) AS included ("plan", "bytes") WHERE "plans"."name" = included."plan";--> statement-breakpoint
INSERT INTO "plan_prices" ("plan", "interval", "currency", "amount") VALUES
	('pro', 'month', 'EUR', 2900), ('pro', 'year', 'EUR', 29000), ('pro', 'month', 'USD', 2900), ('pro', 'year', 'USD', 29000),
	('team', 'month', 'EUR', 9900), ('team', 'year', 'EUR', 99000), ('team', 'month', 'USD', 9900), ('team', 'year', 'USD', 99000),
	('enterprise', 'month', 'EUR', 49900), ('enterprise', 'year', 'EUR', 499000),
	('enterprise', 'month', 'USD', 49900), ('enterprise', 'year', 'USD', 499000);
