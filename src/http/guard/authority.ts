import type { Ability, Scope } from '../../../schemas/scopes.ts'
import type { Restriction } from '../../../schemas/tokens.ts'
import type { Db } from '../../db/database.ts'
import type { Principal } from '../../repositories/people/principals.ts'
import { findSlice } from '../../repositories/people/tokens.ts'
import { fail, refuse } from '../../rules/api-error.ts'
import { coversAll, isInside, keepInherited, textOf, type SentSlice, type Slice } from '../../rules/slices.ts'
import { requireTarget } from './level-lookup.ts'

// What a caller may pass on: to an API token, and to the workloads of a trust rule.

/** Ends the request with 403, as for a caller without the scope. */
export function refuseAs ({ scopes }: Principal, required_scope: Ability): never {
  fail('insufficient_permissions', { required_scope, granted_scopes: [...scopes] })
}

/** Prevents privilege escalation: 403 for more abilities, or wider restrictions, than those of the caller. */
export function refuseWider (
  caller: Principal, given: { abilities: readonly Ability[], slices: readonly Slice[] }, required: Scope
) {
  const missing = caller.scopes.has('*') ? undefined : given.abilities.find((ability) => !caller.scopes.has(ability))
  if (missing !== undefined) refuseAs(caller, missing)
  if (!coversAll(caller.slices, given.slices)) refuseAs(caller, required)
}

/** 422 for a restriction, or the place of an invitation, that no level can have. */
export function requireRestriction (restriction: Restriction, at: string) {
  requireTarget(restriction, `${at}.`)
  if (restriction.inherited && restriction.target === undefined) {
    refuse(`${at}.inherited`, 'Only with a target: no level is above a project')
  }
}

/**
 * Resolves restrictions to ids. `present`: the former restrictions, whose `inherited` stays. `inheriting`: the projects
 * of those with `inherited`. Ends the request with 403 `required` for levels outside of the caller's restrictions.
 */
export async function resolveRestrictions (
  db: Db, caller: Principal, restrictions: readonly Restriction[], required: Scope, present: readonly Slice[] = []
) {
  const slices: SentSlice[] = []
  const inheriting = []
  for (const [i, restriction] of restrictions.entries()) {
    const found = await findSlice(db, caller.organization.id, restriction)
    // A restricted caller must not learn whether a level outside of the restrictions exists.
    if (caller.slices.length > 0 && (typeof found === 'string' || !isInside(caller.slices, found.slice))) {
      refuseAs(caller, required)
    }
    if (typeof found === 'string') return refuse(`restrictions.${i}.${found}`, `There is no such ${found}`)
    slices.push({ ...found.slice, inherited: restriction.inherited })
    if (restriction.inherited) inheriting.push(found.project)
  }
  return { slices: keepInherited(slices, present), inheriting }
}

/** The restrictions in an audit event, as in the events of a team. */
export const restrictionsIn = (slices: readonly Slice[] = []) =>
  slices.length > 0 && { restrictions: slices.map(textOf).join(' ') }
