import type { FastifyRequest } from 'fastify'
import { canonicalAbilities, canonicalList, type Scope } from '../../../schemas/scopes.ts'
import { NamedListQuery, NoContent } from '../../../schemas/shapes.ts'
import {
  CLAIM_LIMITS, CreateWorkloadBody, JWKS_BYTES, MAX_WORKLOADS, TestedWorkload, TestWorkloadBody, UpdateWorkloadBody,
  Workload, WorkloadAnswer, WorkloadParams, WORKLOAD_SCOPES, type FailedCheck
} from '../../../schemas/workloads.ts'
import { change } from '../../changes/change.ts'
import { readNow, type Db } from '../../db/database.ts'
import { refuseWider, requireRestriction, resolveRestrictions, restrictionsIn } from '../../http/guard/authority.ts'
import { inTurn, type Turn } from '../../http/guard/turns.ts'
import { actorOf, makerOf, principalOf } from '../../http/routes/actor.ts'
import { requireCurrent } from '../../http/repeats/etags.ts'
import { writeIfLarge } from '../../http/responses/large-responses.ts'
import type { Domain, Rule } from '../../http/routes/types.ts'
import { eventOf } from '../../repositories/audit/audit.ts'
import {
  areRulesLarge, countRules, createRule, deleteRule, findRestore, findRule, findRuleSlices, isSpent, listRules,
  showRule, updateRule, type RuleRow, type ShownRule
} from '../../repositories/people/workloads.ts'
import { fail, refuse } from '../../rules/api-error.ts'
import { parseId } from '../../rules/formats/ids.ts'
import { requireNewName } from '../../rules/formats/names.ts'
import { mustBeOneOf } from '../../rules/formats/phrases.ts'
import { answerPage } from '../../rules/pagination.ts'
import { coversAll } from '../../rules/slices.ts'
import {
  defaultsOf, isBeforeRestore, requireBound, requireClaims, requireIssuer, requirePublicKeys, storedKeys
} from '../../rules/workload-presets.ts'
import { verifyAssertion } from '../../workloads/assertions.ts'
import { inheritedWarning } from '../../vault/documents/open-documents.ts'

const toItem = ({ id, attributes }: ShownRule) => ({ type: 'workloads' as const, id: String(id), attributes })

/** Characters of a rule at its limits, without its restrictions. */
const LARGEST_RULE = CLAIM_LIMITS.bytes + JWKS_BYTES

async function findItem (db: Db, organizationId: string, id: string) {
  const rule = await findRule(db, organizationId, Number(id))
  return rule && toItem(await showRule(db, rule))
}

/** Trust rules: which tokens of a platform, such as a CI service, are exchanged for access tokens. */
export const workloads: Domain = async (app) => {
  app.get('/organizations/:organization/workloads', {
    config: { access: 'api-token:read' },
    schema: {
      operationId: 'listWorkloads',
      summary: 'List trust rules, newest first',
      description: 'A restricted token sees only rules inside of its own restrictions.',
      querystring: NamedListQuery,
      response: { 200: Workload.list }
    },
    handler: async (request, reply) => {
      const list = (pace?: Turn['pace']) => answerPage(request.query, toItem, (page) => {
        const { organization, slices } = principalOf(request)
        return listRules(app.lists, organization.id, slices, page, pace)
      })
      if (!await areRulesLarge(app.lists, principalOf(request).organization.id)) return list()
      const answer = await inTurn(request, ({ pace }) => list(pace))
      reply.type('application/json; charset=utf-8').serializer(JSON.stringify)
      return reply.send(await writeIfLarge(answer, answer.data.length * LARGEST_RULE) as typeof answer)
    }
  })

  app.post('/organizations/:organization/workloads', {
    config: {
      access: 'api-token:create', etag: true, rules: RULES, audit: 'workload.create', errors: ['limit_reached']
    },
    schema: {
      operationId: 'createWorkload',
      summary: 'Create a trust rule: workloads exchange tokens of their platform for access tokens',
      description: 'The rule allows at most the scopes and the restrictions of its creator, and belongs to the ' +
        'organization.',
      body: CreateWorkloadBody,
      response: { 201: WorkloadAnswer }
    },
    handler: async (request, reply) => {
      const principal = principalOf(request)
      const { id: organization_id } = principal.organization
      const { restrictions = [], jwks = null, preset = null, ...sent } = request.body
      const scopes = canonicalList(sent.scopes) as Scope[]
      requireBound({ preset, claims: sent.claims })
      const { body } = await change(app.db, actorOf(request), {
        async load (db) {
          const { slices, inheriting } = await resolveRestrictions(db, principal, restrictions, 'api-token:create')
          refuseWider(principal, { abilities: scopes, slices }, 'api-token:create')
          if (await countRules(db, organization_id) >= MAX_WORKLOADS) fail('limit_reached', { limit: MAX_WORKLOADS })
          return { slices, inheriting }
        },
        decide: ({ slices, inheriting }) => ({
          write: async (db) => await createRule(db, {
            enabled: true,
            audience: app.issuer(),
            lifetime: 900,
            ...defaultsOf(preset),
            ...sent,
            organization_id,
            preset,
            jwks: jwks && storedKeys(jwks),
            scopes,
            slices,
            made_by: makerOf(principal)
          }) ?? fail('not_found'),
          events: ({ id }) => [eventOf('workload.create', id, {
            issuer: sent.issuer, scopes: scopes.join(' '), ...restrictionsIn(slices)
          })],
          answer: (rule) => ({ status: 201, body: { data: toItem(rule), ...inheritedWarning(inheriting) } })
        })
      })
      return reply.code(201).send(body)
    }
  })

  app.get('/organizations/:organization/workloads/:workload', {
    config: { access: 'api-token:read', etag: true },
    schema: {
      operationId: 'getWorkload',
      summary: 'Get a trust rule',
      description: 'Its `public_id` is the `client_id` of an exchange.',
      params: WorkloadParams,
      response: { 200: Workload.one }
    },
    handler: async (request) => ({ data: toItem(await showRule(app.reads, await visibleRule(app.reads, request))) })
  })

  app.patch('/organizations/:organization/workloads/:workload', {
    config: {
      access: 'api-token:update',
      onlyMethod: true,
      etag: true,
      rules: RULES,
      changes: findItem,
      audit: 'workload.update'
    },
    schema: {
      operationId: 'updateWorkload',
      summary: 'Change a trust rule; omitted fields stay unchanged',
      description: 'The caller needs all that the rule allows, before and after. A change of anything but `name` and ' +
        '`description` ends the access tokens of the rule.',
      params: WorkloadParams,
      body: UpdateWorkloadBody,
      response: { 200: WorkloadAnswer }
    },
    handler: async (request) => {
      const principal = principalOf(request)
      const { body } = request
      const { restrictions, scopes, jwks, name, description, ...sent } = body
      const changed = await change(app.db, actorOf(request), {
        async load (db) {
          const rule = await visibleRule(db, request)
          await requireCurrent(db, request, String(rule.id))
          await requireNewName(name, async () => rule.name)
          const resolved = restrictions &&
            await resolveRestrictions(db, principal, restrictions, 'api-token:update', rule.slices ?? [])
          const set = {
            ...sent,
            ...(scopes && { scopes: canonicalList(scopes) as Scope[] }),
            ...(jwks !== undefined && { jwks: jwks && storedKeys(jwks) }),
            ...(resolved && { slices: resolved.slices })
          }
          const next = { ...rule, ...set }
          // Without the first check, a change of `claims` would take over a rule that allows more than the caller has.
          for (const one of [rule, next]) {
            refuseWider(principal, { abilities: one.scopes, slices: one.slices ?? [] }, 'api-token:update')
          }
          requireBound(next)
          return { rule, set, inheriting: resolved?.inheriting ?? [] }
        },
        decide: ({ rule, set, inheriting }) => ({
          write: async (db) => await updateRule(db, rule, { ...set, name, description }) ?? fail('not_found'),
          events: [eventOf('workload.update', rule.id, {
            members: Object.keys(body).join(' '), ...restrictionsIn(set.slices)
          })],
          answer: (rule) => ({ body: { data: toItem(rule), ...inheritedWarning(inheriting) } })
        })
      })
      return changed.body
    }
  })

  app.delete('/organizations/:organization/workloads/:workload', {
    config: { access: 'api-token:delete', changes: findItem, audit: 'workload.delete' },
    schema: {
      operationId: 'deleteWorkload',
      summary: 'Delete a trust rule; its access tokens become invalid immediately on every instance',
      description: 'To end them for a while, disable the rule.',
      params: WorkloadParams,
      response: { 204: NoContent }
    },
    handler: async (request, reply) => {
      const { organization, slices } = principalOf(request)
      const id = idOf(request)
      await change(app.db, actorOf(request), {
        async load (db) {
          const found = await findRuleSlices(db, organization.id, id)
          if (found === undefined || !coversAll(slices, found)) fail('not_found')
          await requireCurrent(db, request, String(id))
        },
        decide: () => ({
          write: async (db) => deleteRule(db, organization.id, id),
          events: [eventOf('workload.delete', id)]
        })
      })
      return reply.code(204).send(null)
    }
  })

  app.post('/organizations/:organization/workloads/:workload/test', {
    config: { access: 'api-token:read', repeatable: false, audit: 'none' },
    schema: {
      operationId: 'testWorkload',
      summary: 'Test a token of a platform against a trust rule',
      description: 'Makes no access token, and does not use the token up.',
      params: WorkloadParams,
      body: TestWorkloadBody,
      response: { 200: TestedWorkload }
    },
    handler: async (request) => {
      const rule = await visibleRule(app.reads, request)
      const { organization_id, id: rule_id } = rule
      const now = new Date(await readNow(app.reads))
      const verified = await verifyAssertion(app.issuers, rule, request.body.token, now)
      // The issuer may have taken seconds.
      await app.authorizeAgain(request)
      if (!verified.accepted) return { data: { accepted: false, check: verified.check } }
      const { spend, issuedAt } = verified
      const isUsed = rule.single_use && await isSpent(app.reads, { organization_id, rule_id, spend })
      const isOld = rule.single_use && isBeforeRestore(await findRestore(app.reads, organization_id), issuedAt)
      const check: FailedCheck | null = isUsed ? 'used' : isOld ? 'restored' : rule.enabled ? null : 'disabled'
      return { data: { accepted: check === null, check } }
    }
  })
}

const idOf = ({ params }: FastifyRequest) => parseId((params as { workload: string }).workload) ?? fail('not_found')

/** The rule of the path. A restricted caller can access rules inside of the own restrictions. */
async function visibleRule (db: Db, request: FastifyRequest): Promise<RuleRow> {
  const { organization, slices } = principalOf(request)
  const rule = await findRule(db, organization.id, idOf(request))
  return rule !== undefined && coversAll(slices, rule.slices ?? []) ? rule : fail('not_found')
}

/** A rule for a member of the body that was sent. */
const ofMember = <N extends keyof UpdateWorkloadBody>(
  name: N, check: (value: NonNullable<UpdateWorkloadBody[N]>) => void
): Rule => ({
    reads: [name],
    check: ({ body }) => {
      const { [name]: value } = body as UpdateWorkloadBody
      if (value != null) check(value)
    }
  })

const RULES: readonly Rule[] = [
  {
    each: 'scopes',
    check: (spelling: string, at) => {
      const scopes = canonicalAbilities(spelling)
      if (scopes?.every((scope) => (WORKLOAD_SCOPES as readonly string[]).includes(scope)) === true) return
      refuse(at, mustBeOneOf(WORKLOAD_SCOPES, spelling))
    }
  },
  { each: 'restrictions', check: requireRestriction },
  ofMember('issuer', requireIssuer), ofMember('claims', requireClaims), ofMember('jwks', requirePublicKeys)
]
