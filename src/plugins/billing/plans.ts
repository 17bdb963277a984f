import { PlanList, Usage } from '../../../schemas/billing.ts'
import { principalOf } from '../../http/routes/actor.ts'
import { limitOf } from '../../http/limits/limits.ts'
import type { Domain } from '../../http/routes/types.ts'
import { listPlans } from '../../repositories/billing/plans.ts'
import { findUsage } from '../../repositories/billing/usage.ts'

export const plans: Domain = async (app) => {
  app.get('/plans', {
    config: { access: 'authenticated', whenInactive: true },
    schema: {
      operationId: 'listPlans',
      summary: 'List the plans with their limits and prices',
      description: 'Amounts are in the smallest unit of the currency, such as cents.',
      response: { 200: PlanList }
    },
    handler: async () => ({
      data: (await listPlans(app.pages)).map((plan) => ({ type: 'plans' as const, id: plan.name, attributes: plan }))
    })
  })

  app.get('/organizations/:organization/usage', {
    config: { access: 'billing:read', at: 'organization', whenInactive: true },
    schema: {
      operationId: 'getUsage',
      summary: "Get the organization's usage in this month and on each of the last 31 days, and the limits of its plan",
      description: 'A limit that is null means that there is no limit.',
      response: { 200: Usage.one }
    },
    handler: async (request) => {
      const { id, plan } = principalOf(request).organization
      const { period_start, period_end, calls, projects, members, invitations, bytes, days } =
        await findUsage(app.lists, id)
      return {
        data: {
          type: 'usage' as const,
          id: period_start.toISOString().slice(0, 'YYYY-MM'.length),
          attributes: {
            plan: plan.name,
            period_start,
            period_end,
            api_calls: { used: calls, limit_per_minute: limitOf(app.config, 'api', plan.api_per_minute) || null },
            projects: { used: projects, limit: plan.max_projects },
            members: { used: members, limit: plan.max_members },
            open_invitations: invitations,
            bytes: { used: bytes, limit: plan.max_bytes },
            days
          }
        }
      }
    }
  })
}
