import type { Noun } from './common/noun.ts'

/**
 * The commands with which an operator manages a service, by their first word. They also run inside a service that has
 * the embedded database open. Modules are imported on demand.
 */
export const OPERATOR_NOUNS: Record<string, () => Promise<Noun>> = {
  rewrap: async () => (await import('./keys/rewrap.ts')).noun,
  audit: async () => (await import('./audit/audit.ts')).noun,
  organization: async () => (await import('./people/organizations.ts')).noun,
  user: async () => (await import('./people/users.ts')).noun,
  project: async () => (await import('./keys/re-encryption.ts')).noun,
  token: async () => (await import('./people/tokens.ts')).noun,
  client: async () => (await import('./people/clients.ts')).noun,
  coupon: async () => (await import('./billing/billing.ts')).coupon,
  invoice: async () => (await import('./billing/billing.ts')).invoice,
  refund: async () => (await import('./billing/billing.ts')).refund,
  plan: async () => (await import('./billing/billing.ts')).plan
}
