import { randomUUID } from 'node:crypto'
import { WORKLOAD_SCOPES, type JwkSet } from '../../schemas/workloads.ts'
import { makeWorkloadToken } from '../../src/repositories/people/principals.ts'
import { createRule, findRule, type RuleRow } from '../../src/repositories/people/workloads.ts'
import { workloadIdOf } from '../../src/rules/formats/ids.ts'
import type { TestApp } from './app.ts'
import { AUDIENCE, makeKey, signFor } from './issuer.ts'

export const ISSUER = 'https://issuer.example'

type NewRule = Parameters<typeof createRule>[1]
type Service = Pick<TestApp, 'database'>

/** Creates a rule that allows workloads of a project `orbit` all that a rule can allow, unless `more` says less. */
export async function makeRule (
  { database: { db } }: Service, organization_id: string, more: Partial<NewRule> = {}
): Promise<RuleRow & { client_id: string }> {
  const { id } = (await createRule(db, {
    organization_id,
    name: 'Deployment',
    description: null,
    enabled: true,
    preset: null,
    issuer: ISSUER,
    jwks: null,
    audience: AUDIENCE,
    claims: { project: 'orbit' },
    scopes: [...WORKLOAD_SCOPES],
    slices: [],
    lifetime: 900,
    single_use: false,
    max_assertion_age: 3600,
    made_by: undefined,
    ...more
  }))!
  return { ...(await findRule(db, organization_id, id))!, client_id: workloadIdOf(organization_id, id) }
}

/** The access token of a workload by the present state of its rule, without an exchange. */
export function tokenOf (
  { database: { db } }: Service, { organization_id, id, revision }: RuleRow,
  { ends = new Date(Date.now() + 900_000), scopes = null }: { ends?: Date, scopes?: number[] | null } = {}
): string {
  return makeWorkloadToken(db, { organizationId: organization_id, id, revision, ends, scopes }, ['subject', null])
}

/** Signs assertions that `makeRule` accepts, with a key of its own, which is in `jwks`. `age`: seconds since `iat`. */
export async function makeSigner () {
  const key = await makeKey('ES256', 'k1')
  const sign = async (claims: Record<string, unknown> = {}, age = 0): Promise<string> => {
    const iat = Math.floor(Date.now() / 1000) - age
    return signFor(ISSUER, key, { iat, exp: iat + 600, jti: randomUUID(), project: 'orbit', ...claims })
  }
  return { jwks: { keys: [key.jwk] } as JwkSet, sign }
}
