import type { PaymentStatus } from '../../schemas/billing.ts'

export interface ChargeOrder {
  /** The idempotency key. The provider executes orders with the same id only once, and returns the same outcome. */
  id: string
  amount: number
  currency: string
  /** The organization's payment method; null if it has none. */
  payment_method_id: string | null
}

export interface RefundOrder {
  id: string
  amount: number
  currency: string
  charge: { id: string, reference: string | null }
}

/** The result of an order. The status is `pending` until the provider knows the result. */
export interface Outcome { status: PaymentStatus, reference: string | null }

/**
 * A payment provider. An order (charge or refund) is sent outside of transactions, after its row was committed. The
 * worker repeats an order until the provider returns a final status, even if the operator has recorded an outcome.
 * `signal` aborts a call at its timeout.
 */
export interface Provider {
  name: string
  charge (order: ChargeOrder, signal: AbortSignal): Promise<Outcome>
  refund (order: RefundOrder, signal: AbortSignal): Promise<Outcome>
}

/** The provider for refunds of a successful charge: `manual` unless the charge's provider reported the success. */
export const holderOf = ({ provider, provider_status }: { provider: string, provider_status: PaymentStatus | null }) =>
  provider_status === 'succeeded' ? provider : manual.name

/** Whether a charge or refund was sent to a provider that has not yet reported a final status. */
export const isUnanswered = (
  { provider, asked_at, provider_status }:
  { provider: string, asked_at: Date | null, provider_status: PaymentStatus | null }
) =>
  provider !== manual.name && (provider_status === 'pending' || (asked_at !== null && provider_status === null))

/**
 * Payment by wire transfer. The operator records received payments and sent refunds (`invoice paid`, `refund paid`). No
 * card or account data is stored.
 */
export const manual: Provider = {
  name: 'manual',
  charge: async () => ({ status: 'pending', reference: null }),
  refund: async () => ({ status: 'pending', reference: null })
}
