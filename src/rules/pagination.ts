import {
  PAGE_SIZE, WHOLE_LIST, type NamedListQuery, type PageMeta, type Selection
} from '../../schemas/shapes.ts'

export interface PageRequest { page: number, per_page: number }

export type NamedPageRequest = PageRequest & Selection

/** Whether a selection (order and filters) selects the whole list in its default order. */
export const isDefault = ({ sort, name, search }: Selection): boolean =>
  sort === undefined && name === undefined && search === undefined

/** The requested page. Without `page` and `per_page`, the page contains the whole list, up to 1,000 rows. */
export function pageOf (query: NamedListQuery): NamedPageRequest {
  const { sort, 'filter[name]': name, search } = query
  const whole = query.page === undefined && query.per_page === undefined
  return {
    page: query.page ?? 1, per_page: whole ? WHOLE_LIST : query.per_page ?? PAGE_SIZE.default, sort, name, search
  }
}

export const offsetOf = ({ page, per_page }: PageRequest): number => (page - 1) * per_page

/** The pagination object for `count` rows shown out of `total`; `from` and `to` are null on an empty page. */
export function pageMeta ({ page, per_page }: PageRequest, total: number, count: number): PageMeta {
  const from = count === 0 ? null : offsetOf({ page, per_page }) + 1
  return {
    current_page: page,
    per_page,
    total,
    last_page: Math.max(1, Math.ceil(total / per_page)),
    from,
    to: from === null ? null : from + count - 1
  }
}

export async function answerPage<R, I> (
  query: NamedListQuery, toItem: (row: R) => I, list: (page: NamedPageRequest) => Promise<{ rows: R[], total: number }>
): Promise<{ data: I[], meta: PageMeta }> {
  const page = pageOf(query)
  const { rows, total } = await list(page)
  return { data: rows.map(toItem), meta: pageMeta(page, total, rows.length) }
}

/**
 * Reads a page of a list. Each row has the length of the list as `total`. A page beyond the end has no rows, so the
 * total then comes from the first row of the list.
 */
export async function readPage<R extends { total: number }> (
  request: PageRequest, read: (part: { limit: number, offset: number }) => Promise<R[]>
): Promise<{ rows: R[], total: number }> {
  const rows = await read({ limit: request.per_page, offset: offsetOf(request) })
  const [first] = rows.length > 0 || request.page === 1 ? rows : await read({ limit: 1, offset: 0 })
  return { rows, total: first?.total ?? 0 }
}

/** Page size of the lists on an account page, such as sessions, grants and tokens of a user. */
export const HELD_ON_PAGE = 100

/** A page of a list on an account page; `isLast` is false if more pages follow. */
export interface HeldPage<T> { rows: T[], page: number, isLast: boolean }

/** Limit and offset of a page. The limit includes one more row, which shows whether another page follows. */
export const heldFrom = (page: number) => ({ limit: HELD_ON_PAGE + 1, offset: (page - 1) * HELD_ON_PAGE })

/** Makes the page from the rows selected with `heldFrom`. */
export const heldPage = <T>(rows: readonly T[], page: number): HeldPage<T> =>
  ({ rows: rows.slice(0, HELD_ON_PAGE), page, isLast: rows.length <= HELD_ON_PAGE })
