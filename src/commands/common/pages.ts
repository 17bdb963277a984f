/**
 * Iterates over all rows of a paginated list.
 *
 * @param list the next rows after a cursor; empty at the end
 * @param begin the cursor before the first row
 */
export async function * allRows<Row, Place> (
  list: (after: Place) => Promise<Row[]>, begin: Place, placeOf: (row: Row) => Place
): AsyncGenerator<Row> {
  for (let after = begin; ;) {
    const page = await list(after)
    if (page.length === 0) return
    yield * page
    after = placeOf(page.at(-1)!)
  }
}
