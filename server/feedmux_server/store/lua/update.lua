-- ARGV: definition, etag, expected_etag ('' for any), until_ms
local too_late = late(ARGV[4])
if too_late then return too_late end
local stored = read('epoch', 'deleted', 'etag', 'nonce')
if absent(stored[1], stored[2]) then return not_found(stored[2]) end
if foreign() then return {'DAMAGED'} end
local now = now_ms()
-- Nothing to change. This is also the answer to the second try of an update whose first answer was lost.
if stored[3] == ARGV[2] then return answer('UNCHANGED', now) end
if ARGV[3] ~= '' and ARGV[3] ~= stored[3] then return {'ETAG_MISMATCH'} end
redis.call('HSET', key,
  'definition', ARGV[1], 'etag', ARGV[2], 'epoch', int(next_epoch(stored[1], now)),
  -- The lease ends without its holder: what the members of a group have in hand, they still have.
  'nonce', (stored[4] or '') ~= '' and 'lost' or '', 'owner', '', 'lease_until_ms', '0', 'fence_cause', 'UPDATE', 'update_ms', int(now))
return answer('OK', now)
