import { SCOPE_NAMES, type Scope } from './scopes.ts'

// The events in the order of the OpenAPI document. Events that follow from a scope may be omitted (`ofScopes`).
const LISTED = [
  'organization.create', 'organization.update', 'organization.delete',
  'project.create', 'project.update', 'project.delete', 'project.restore',
  'target.create', 'target.update', 'target.delete',
  'environment.create', 'environment.update', 'environment.delete',
  'secret.store', 'secret.delete', 'secret.restore', 'secret.decrypt', 'secret.names',
  'version.read', 'version.delete', 'version.purge',
  'key.retrieve', 'key.rotate', 'key.change_custody',
  'history.re_encrypt',
  'api-token.create', 'api-token.update', 'api-token.rotate', 'api-token.delete',
  'workload.create', 'workload.update', 'workload.delete',
  'workload.login', 'workload.refuse',
  'oauth.grant', 'oauth.revoke', 'oauth.reuse',
  'invitation.create', 'invitation.send', 'invitation.withdraw', 'invitation.decline', 'invitation.expire',
  'member.create', 'member.join', 'member.update', 'member.delete',
  'team.create', 'team.update', 'team.delete',
  'team-member.create', 'team-member.delete', 'team-project.update', 'team-project.delete',
  'user.create', 'user.password', 'user.request_reset', 'user.disable', 'user.enable',
  'session.create', 'session.delete', 'session.refuse', 'password.refuse',
  'second-factor.prepare', 'second-factor.enroll', 'second-factor.disable', 'second-factor.ask',
  'second-factor.refuse',
  'second-factor.use_recovery_code', 'second-factor.renew_recovery_codes',
  'subscription.create', 'subscription.update', 'subscription.cancel', 'subscription.resume', 'subscription.renew',
  'subscription.end', 'payment-method.create', 'payment-method.update', 'payment-method.delete',
  'charge.create', 'charge.fail', 'charge.report',
  'refund.create', 'refund.pay', 'refund.fail', 'refund.report', 'refund.check',
  'coupon.redeem', 'coupon.remove', 'invoice.pay', 'invoice.void',
  'chain-key.rotate', 'integrity.violation', 'integrity.adopt'
] as const

type OfScope<S> = S extends `${infer Resource}:${infer Verb extends 'create' | 'update' | 'delete'}` ? `${Resource}.${Verb}` : never
export type EventName = (typeof LISTED)[number] | OfScope<Scope>

// Each scope that creates, updates or deletes a resource has an event of that name.
const ofScopes = SCOPE_NAMES.filter((scope) => /:(?:create|update|delete)$/.test(scope))
  .map((scope) => scope.replace(':', '.') as OfScope<Scope>)

/** Names of all audit events: `<resource>.<verb>`. A published name never changes. */
export const EVENTS: readonly EventName[] = [...new Set([...LISTED, ...ofScopes])]
