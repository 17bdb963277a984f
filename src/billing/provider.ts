import type { PaymentStatus } from '../../schemas/billing.ts'

/** Money that is to be asked for. */
export interface ChargeOrder {
  /** Ours. Whoever is asked twice with one id does it once, and answers what became of it. */
  id: string
  amount: number
  currency: string
  /** The payment method that the organization chose; null where it has none. */
  payment_method_id: string | null
}

/** Money that is to go back, of a charge that succeeded. */
export interface RefundOrder {
  id: string
  amount: number
  currency: string
  charge: { id: string, reference: string | null }
}

/** What the provider says: `pending` where it is known later. */
export interface Outcome { status: PaymentStatus, reference: string | null }

/**
 * Who moves money. It is told outside of every transaction, after the intent was committed, and again until it has
 * answered, whatever was noted down meanwhile: an order is known by its id. `signal` ends what takes too long.
 */
export interface Provider {
  name: string
  charge (order: ChargeOrder, signal: AbortSignal): Promise<Outcome>
  refund (order: RefundOrder, signal: AbortSignal): Promise<Outcome>
}

/**
 * Who has the money of a charge that succeeded, and gives it back: the provider that says so; else the operator, who
 * noted it down.
 */
export const holderOf = ({ provider, provider_status }: { provider: string, provider_status: PaymentStatus | null }) =>
  provider_status === 'succeeded' ? provider : manual.name

/** Whether a provider was asked to move the money of a charge or refund, and has not said yet what came of it. */
export const isUnanswered = (
  { provider, asked_at, provider_status }:
  { provider: string, asked_at: Date | null, provider_status: PaymentStatus | null }
) =>
  provider !== manual.name && (provider_status === 'pending' || (asked_at !== null && provider_status === null))

/**
 * The operator's own ledger: invoices are paid by wire transfer, and the operator notes down what came and what went
 * (`invoice paid`, `refund paid`). It holds no data of cards or accounts.
 */
export const manual: Provider = {
  name: 'manual',
  charge: async () => ({ status: 'pending', reference: null }),
  refund: async () => ({ status: 'pending', reference: null })
}
