-- ARGV: definition, etag, position, cluster_time, order, until_ms
local too_late = late(ARGV[6])
if too_late then return too_late end
local stored = read('epoch', 'etag', 'deleted')
local now = now_ms()
if not absent(stored[1], stored[3]) then
  if stored[2] == ARGV[2] then return answer('UNCHANGED', now) end
  return {'EXISTS'}
end
-- The new epoch is above that of any earlier session. So an owner that outlived the loss of its hash is fenced here and
-- does not restore its state over the new hash.
local epoch = int(next_epoch(stored[1], now))
replace(
  'definition', ARGV[1], 'etag', ARGV[2],
  'position', ARGV[3], 'cluster_time', ARGV[4], 'order', ARGV[5],
  'epoch', epoch, 'delete_epoch', epoch, 'seek_epoch', stored[3] and epoch or '0',
  'nonce', '', 'owner', '', 'lease_until_ms', '0', 'fence_cause', 'DELETE',
  'create_ms', int(now), 'update_ms', int(now))
return answer('CREATED', now)
