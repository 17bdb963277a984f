import type { FastifyInstance } from 'fastify'
import { DryRunQuery } from '../../../schemas/dry-run.ts'
import { booleanIn } from '../bodies/validation.ts'
import { hooksOf } from '../routes/routes.ts'
import { requireScope } from './access.ts'
import { scopesOf } from './access-document.ts'

declare module 'fastify' {
  interface FastifyContextConfig {
    /**
     * The change supports `dry_run=true`, which also needs `secret:decrypt`. For a dry run (`isDryRun`), the handler
     * validates the request as usual, changes nothing, and returns what the request changes without `dry_run`.
     */
    dryRun?: true
  }
}

/** Adds the parameter `dry_run` and its scope to routes that declare `dryRun`. Call this before `installAccess`. */
export function installDryRuns (app: FastifyInstance) {
  app.addHook('onRoute', (route) => {
    const { dryRun, access, mayNeed = [] } = route.config ?? {}
    if (!dryRun) return
    route.schema = { ...route.schema, querystring: DryRunQuery }
    if (scopesOf(access).includes('secret:decrypt')) return
    route.config = { ...route.config, mayNeed: [...mayNeed, 'secret:decrypt'] }
    // The scope is checked before the request is validated.
    route.preValidation = [async (request) => {
      const { dry_run } = request.query as { dry_run?: unknown }
      if (booleanIn(dry_run) === true) requireScope(request, 'secret:decrypt')
    }, ...hooksOf(route.preValidation)]
  })
}
