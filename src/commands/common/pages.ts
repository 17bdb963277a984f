/**
 * Iterates over all rows of a paginated list.
 *
 * @param list returns the rows after a cursor; an empty page ends the iteration
 * @param begin the cursor before the first row
 */
export async function * allRows<Row, Cursor> (
  list: (after: Cursor) => Promise<Row[]>, begin: Cursor, cursorOf: (row: Row) => Cursor
): AsyncGenerator<Row> {
  for (let after = begin; ;) {
    const page = await list(after)
    if (page.length === 0) return
    yield * page
    after = cursorOf(page.at(-1)!)
  }
}
