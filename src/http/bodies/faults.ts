import type { FastifyRequest, FastifySchemaValidationError } from 'fastify'
import { ApiError, MAX_FAULTS } from '../../rules/api-error.ts'
import { isGoSdk } from '../routes/go-sdk-compat.ts'
import type { Rule } from '../routes/types.ts'
import { errorsByMember } from './validation.ts'

/** The parts of a request, in the order in which Fastify validates them. */
const PARTS = ['params', 'body', 'querystring', 'headers'] as const
export type Part = (typeof PARTS)[number]

type Validator = (input: unknown) => { value?: unknown, error?: FastifySchemaValidationError[] }

/** The error of a body that the parser rejects, before the schemas are checked. */
export class BodyRefused extends ApiError {
  override readonly name = 'BodyRefused'
  /** The parsed body, if the error is only about characters in its texts. */
  readonly body: unknown

  constructor (errors: Record<string, string[]>, body?: unknown) {
    super('validation_failed', undefined, errors)
    this.body = body
  }
}

/** Throws 422 with a message for the invalid member of a body, from the parser. */
export function refuseBody (member: string, sentence: string): never {
  throw new BodyRefused({ [member]: [sentence] })
}

/** Ends a request that violates rules of its route with 422. The code is that of the first violated rule. */
export function requireRules (request: FastifyRequest) {
  const { rules } = request.routeOptions.config
  if (rules === undefined) return
  const faults = new Faults()
  checkRules(request, rules, faults, false)
  if (faults.error !== undefined) throw faults.error
}

/**
 * Validation stops at the first part of a request with faults. Returns the error of this part with the faults of the
 * parts after it, and of the rules.
 */
export async function withLaterFaults (request: FastifyRequest, refused: ApiError, part: Part): Promise<ApiError> {
  const { config: { rules = [], goSdk }, schema } = request.routeOptions
  const faults = new Faults()
  faults.add(refused)
  const own = schema?.body === undefined ? 'querystring' : 'body'
  let isOwnInvalid = part === own
  // The bodies of the Go SDK are converted after the parser, so the schema does not apply to one that it rejected.
  const isConverted = goSdk !== undefined && isGoSdk(request)
  const isParsed = refused instanceof BodyRefused && isObject(refused.body) && !isConverted
  if (isParsed) request.body = refused.body
  // Validates an invalid query again: the rules need its valid parameters, and Fastify has not converted these.
  for (const other of PARTS.slice(PARTS.indexOf(part) + (isParsed || part === 'querystring' ? 0 : 1))) {
    if (faults.isFull) break
    const error = await validate(request, other)
    if (error !== undefined && other === own) isOwnInvalid = true
    if (other !== part) faults.add(error)
    else if (isParsed) faults.addNew(error)
  }
  // No rule applies to a body that the parser rejected.
  if (own === 'querystring' || isObject(request.body)) checkRules(request, rules, faults, isOwnInvalid)
  return faults.error!
}

const isObject = (value: unknown) => typeof value === 'object' && value !== null && !Array.isArray(value)

// Returns the error of a part. Replaces the part by the validated value, also if only some of its members are valid.
async function validate (request: FastifyRequest, part: Part): Promise<ApiError | undefined> {
  const values = request as unknown as Record<string, unknown>
  const name = part === 'querystring' ? 'query' : part
  const compiled = request.getValidationFunction(part) as Validator | Record<string, Validator> | undefined
  // A body with several media types has a validator for each.
  const validator = typeof compiled === 'object' ? compiled[request.mediaType ?? ''] : compiled
  if (validator === undefined) return undefined
  try {
    // The validator of a large body is asynchronous: it throws the error and returns no value.
    const { value, error } = await validator(values[name]) ?? {}
    if (value !== undefined) values[name] = value
    return error && new ApiError('validation_failed', undefined, errorsByMember(error, part))
  } catch (error) {
    if (error instanceof ApiError) return error
    throw error
  }
}

function checkRules (request: FastifyRequest, rules: readonly Rule[], faults: Faults, isInvalid: boolean) {
  for (const rule of rules) {
    if (rule.each !== undefined) {
      const { [rule.each]: list } = request.body as Record<string, unknown>
      for (const [i, element] of Array.isArray(list) ? list.entries() : []) {
        const path = `${rule.each}.${i}`
        if (!faults.has(path)) faults.try(() => rule.check(element as never, path, request))
        if (faults.isFull) return
      }
    } else if (rule.reads === undefined ? !isInvalid : !rule.reads.some((member) => faults.has(member))) {
      faults.try(() => rule.check(request))
    }
    if (faults.isFull) return
  }
}

/** Collects the faults of a request, at most `MAX_FAULTS`. */
class Faults {
  #first: ApiError | undefined
  #count = 0
  readonly #errors: Record<string, string[]> = Object.create(null)

  get isFull () {
    return this.#count >= MAX_FAULTS
  }

  /** The first error, with the faults of all. */
  get error (): ApiError | undefined {
    const { code, details, first } = this.#first ?? {}
    return code === undefined ? undefined : new ApiError(code, details, this.#errors, first)
  }

  add (error: ApiError | undefined) {
    if (error?.errors === undefined) return
    this.#first ??= error
    for (const [member, sentences] of Object.entries(error.errors)) {
      const added = sentences.slice(0, MAX_FAULTS - this.#count)
      if (added.length === 0) return
      this.#errors[member] = [...this.#errors[member] ?? [], ...added]
      this.#count += added.length
    }
  }

  /** Adds the faults of members that have none yet. */
  addNew (error: ApiError | undefined) {
    if (error?.errors === undefined) return
    const news = Object.entries(error.errors).filter(([member]) => !(member in this.#errors))
    if (news.length > 0) this.add(new ApiError(error.code, error.details, Object.fromEntries(news)))
  }

  /**
   * Runs a rule and adds the faults of members that have none yet. An error without members, such as `user_required`,
   * ends the checks if it is the first.
   */
  try (check: () => void) {
    try {
      check()
    } catch (error) {
      if (!(error instanceof ApiError) || (error.errors === undefined && this.#first === undefined)) throw error
      this.addNew(error)
    }
  }

  /** Whether the member, or a member within it, has a fault. */
  has (member: string): boolean {
    for (const known in this.#errors) if (known === member || known.startsWith(`${member}.`)) return true
    return false
  }
}
